//! Flow tables, their groups and their rules as firmware commands create, change and destroy them.

use bareverbs_mlx5_spec::CmdStatus;

use super::Engine;
use super::nic::flow_table::{FlowTable, Group, MAX_GROUPS, RULE_MEMORY};
use super::nic::{Destination, FlowTableSpec, LOG_MAX_TABLE_SIZE, MAX_LEVEL, MatchCriteria, Rule};
use crate::registry::{ObjectKind, Resource};
use crate::stats::Traffic;

impl Engine {
    /// Returns the table with this number, if there is room for a rule or a group of so many bytes.
    fn flow_table(&mut self, table: u32, more: u64) -> Result<&mut FlowTable, CmdStatus> {
        if !self.shared.registry.has_memory(more) {
            return Err(CmdStatus::NoResources);
        }
        self.nic.flow_tables.tables.get_mut(&table).ok_or(CmdStatus::BadRes)
    }

    fn count_flow_table(&mut self, table: u32) {
        let memory = self.nic.flow_tables.tables.get(&table).map_or(0, FlowTable::memory);
        self.shared.registry.set_memory(Resource::new(ObjectKind::FlowTable, table), memory);
    }

    /// Refuses a next table that is not at a greater level: so no table leads back to itself, and each can be ended.
    fn check_next_table(&self, level: u32, miss: Option<u32>) -> Result<(), CmdStatus> {
        let next = miss.and_then(|miss| self.nic.flow_tables.tables.get(&miss));
        if next.is_some_and(|next| next.spec.level <= level) { Err(CmdStatus::BadParam) } else { Ok(()) }
    }

    /// Creates a table; its number.
    pub(crate) fn create_flow_table(&mut self, spec: FlowTableSpec) -> Result<u32, CmdStatus> {
        if spec.level > MAX_LEVEL || spec.log_size > LOG_MAX_TABLE_SIZE {
            return Err(CmdStatus::BadParam);
        }
        self.check_next_table(spec.level, spec.miss)?;
        let uses = spec.miss.map(|miss| Destination::Table(miss).resource()).into_iter().collect();
        let number = self.shared.registry.create(ObjectKind::FlowTable, 0, uses)?;
        self.nic.flow_tables.tables.insert(number, FlowTable::new(spec));
        Ok(number)
    }

    /// Changes where frames go that no rule of a table matches.
    pub(crate) fn set_flow_table_miss(&mut self, table: u32, miss: Option<u32>) -> Result<(), CmdStatus> {
        let level = self.nic.flow_tables.tables.get(&table).ok_or(CmdStatus::BadRes)?.spec.level;
        self.check_next_table(level, miss)?;
        let Self { shared, nic, .. } = self;
        let place = nic.flow_tables.tables.get_mut(&table).ok_or(CmdStatus::BadRes)?;
        let resource = |table: Option<u32>| table.map(|table| Destination::Table(table).resource());
        let id = Resource::new(ObjectKind::FlowTable, table);
        shared.registry.change_use(id, resource(place.spec.miss), resource(miss))?;
        place.spec.miss = miss;
        Ok(())
    }

    /// Ends a table without groups to which nothing leads. The last one is ended without another root (Linux
    /// `update_root_ft_destroy`).
    pub(crate) fn destroy_flow_table(&mut self, table: u32) -> Result<(), CmdStatus> {
        let has_groups = self.nic.flow_tables.tables.get(&table).is_some_and(|table| !table.groups.is_empty());
        if has_groups {
            return Err(CmdStatus::BadResState);
        }
        self.shared.registry.destroy(Resource::new(ObjectKind::FlowTable, table))?;
        self.nic.flow_tables.tables.remove(&table);
        if self.nic.flow_tables.root == Some(table) {
            self.nic.flow_tables.root = None;
        }
        Ok(())
    }

    /// Lets frames begin at a table.
    pub(crate) fn set_flow_table_root(&mut self, table: u32) -> Result<(), CmdStatus> {
        if !self.nic.flow_tables.tables.contains_key(&table) {
            return Err(CmdStatus::BadRes);
        }
        self.nic.flow_tables.root = Some(table);
        Ok(())
    }

    /// Creates a group for the rules from `first` to `last`; its number. Refused with [`CmdStatus::BadParam`] beyond the table
    /// and if another group has one of them, with [`CmdStatus::LimErr`] if there are too many groups.
    pub(crate) fn create_flow_group(
        &mut self,
        table: u32,
        (first, last): (u32, u32),
        criteria: MatchCriteria,
    ) -> Result<u32, CmdStatus> {
        let place = self.flow_table(table, RULE_MEMORY)?;
        if place.groups.len() >= MAX_GROUPS {
            return Err(CmdStatus::LimErr);
        }
        let is_free = place.groups.values().all(|other| last < other.first || other.last < first);
        if first > last || last >> place.spec.log_size != 0 || !is_free {
            return Err(CmdStatus::BadParam);
        }
        let number = place.next_group;
        place.next_group = number.checked_add(1).ok_or(CmdStatus::LimErr)?;
        place.groups.insert(number, Group::new(first, last, &criteria));
        self.count_flow_table(table);
        Ok(number)
    }

    /// Ends a group without rules.
    pub(crate) fn destroy_flow_group(&mut self, table: u32, group: u32) -> Result<(), CmdStatus> {
        let place = self.nic.flow_tables.tables.get_mut(&table).ok_or(CmdStatus::BadRes)?;
        let Some(range) = place.groups.get(&group) else { return Err(CmdStatus::BadRes) };
        if place.has_rules(range.first..=range.last) {
            return Err(CmdStatus::BadResState);
        }
        place.groups.remove(&group);
        self.count_flow_table(table);
        Ok(())
    }

    /// Returns a rule.
    pub(crate) fn flow_rule(&self, table: u32, index: u32) -> Option<&Rule> {
        self.nic.flow_tables.tables.get(&table)?.rule_at(index)
    }

    /// Sets a rule of a group, or replaces it, all at once. What it leads to must exist.
    pub(crate) fn set_flow_rule(&mut self, table: u32, index: u32, rule: Rule) -> Result<(), CmdStatus> {
        let place = self.flow_table(table, rule.memory())?;
        if !place.groups.get(&rule.group).is_some_and(|group| (group.first..=group.last).contains(&index)) {
            return Err(CmdStatus::BadParam);
        }
        let id = Resource::new(ObjectKind::FlowTable, table);
        if rule.resources().any(|named| !self.shared.registry.contains(named)) {
            return Err(CmdStatus::BadRes);
        }
        // The new ones first: what stays is never without a reference.
        for named in rule.resources() {
            self.shared.registry.change_use(id, None, Some(named))?;
        }
        let place = self.nic.flow_tables.tables.get_mut(&table).ok_or(CmdStatus::BadRes)?;
        if let Some(old) = place.insert_rule(index, rule) {
            self.forget_rule(table, &old)?;
        }
        self.count_flow_table(table);
        Ok(())
    }

    /// Deletes a rule.
    pub(crate) fn delete_flow_rule(&mut self, table: u32, index: u32) -> Result<(), CmdStatus> {
        let place = self.nic.flow_tables.tables.get_mut(&table).ok_or(CmdStatus::BadRes)?;
        let old = place.remove_rule(index).ok_or(CmdStatus::BadParam)?;
        self.forget_rule(table, &old)?;
        self.count_flow_table(table);
        Ok(())
    }

    fn forget_rule(&mut self, table: u32, rule: &Rule) -> Result<(), CmdStatus> {
        let id = Resource::new(ObjectKind::FlowTable, table);
        rule.resources().try_for_each(|named| self.shared.registry.change_use(id, Some(named), None))
    }

    /// Creates a counter that begins at 0; its number.
    pub(crate) fn create_flow_counter(&mut self) -> Result<u32, CmdStatus> {
        let number = self.shared.registry.create(ObjectKind::FlowCounter, 0, Vec::new())?;
        self.nic.flow_tables.counters.insert(number, Traffic::default());
        Ok(number)
    }

    /// Returns a counter.
    pub(crate) fn flow_counter(&mut self, counter: u32) -> Option<&mut Traffic> {
        self.nic.flow_tables.counters.get_mut(&counter)
    }

    /// Ends a counter that no rule has.
    pub(crate) fn destroy_flow_counter(&mut self, counter: u32) -> Result<(), CmdStatus> {
        self.shared.registry.destroy(Resource::new(ObjectKind::FlowCounter, counter))?;
        self.nic.flow_tables.counters.remove(&counter);
        Ok(())
    }
}
