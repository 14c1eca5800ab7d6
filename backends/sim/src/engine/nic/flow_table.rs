//! Flow tables: groups of rules with one mask, and what becomes of a frame that a rule matches.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use bareverbs_mlx5_spec::flow_action;

use crate::registry::{ObjectKind, Resource};
use crate::stats::Traffic;

/// Rules of a table at most, as a power of two.
pub(crate) const LOG_MAX_TABLE_SIZE: u32 = 16;
/// Destinations of a rule at most, as a power of two (`log_max_destination`).
pub(crate) const LOG_MAX_DESTINATIONS: u32 = 8;
/// Counters of a rule at most, as a power of two (`log_max_flow_counter`).
pub(crate) const LOG_MAX_RULE_COUNTERS: u32 = 2;
/// Counters that one command shows at most, as a power of two (`log_max_flow_counter_bulk`).
pub(crate) const LOG_MAX_COUNTER_QUERY: u32 = 8;
/// Level of a table at most (`max_ft_level`). The table for what no rule matches has a greater one than the table itself.
pub(crate) const MAX_LEVEL: u32 = 96;
/// Groups of a table at most. Linux makes a dozen. Each costs every frame a search, so they are few.
pub(in crate::engine) const MAX_GROUPS: usize = 256;
/// Bytes of this process that a rule or a group takes, and those that a destination or a counter of a rule takes, here and in the
/// registry.
pub(in crate::engine) const RULE_MEMORY: u64 = 768;
const LISTED_MEMORY: u64 = 48;

/// What of `fte_match_param` can be matched: the outer headers, and the first block of others.
pub(crate) type MatchParam = [u8; 128];

/// The fields of a frame that a group's rules look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MatchCriteria {
    /// Bits of `match_criteria_enable`: outer headers, others.
    pub(crate) enable: u32,
    pub(crate) mask: MatchParam,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To another table.
    Table(u32),
    /// To a TIR.
    Tir(u32),
}

impl Destination {
    pub(in crate::engine) const fn resource(self) -> Resource {
        match self {
            Self::Table(table) => Resource::new(ObjectKind::FlowTable, table),
            Self::Tir(tirn) => Resource::new(ObjectKind::Tir, tirn),
        }
    }
}

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) group: u32,
    pub(crate) tag: u32,
    /// Bits of [`flow_action`].
    pub(crate) action: u32,
    pub(crate) value: MatchParam,
    pub(crate) destinations: Vec<Destination>,
    /// Counters that count the frames that match, by number.
    pub(crate) counters: Vec<u32>,
}

impl Rule {
    /// Returns the bytes of this process that it takes.
    pub(in crate::engine) fn memory(&self) -> u64 {
        RULE_MEMORY + LISTED_MEMORY * self.listed() as u64
    }

    fn listed(&self) -> usize {
        self.destinations.len() + self.counters.len()
    }

    /// Returns what the rule names.
    pub(in crate::engine) fn resources(&self) -> impl Iterator<Item = Resource> {
        let counters = self.counters.iter().map(|counter| Resource::new(ObjectKind::FlowCounter, *counter));
        self.destinations.iter().map(|to| to.resource()).chain(counters)
    }
}

/// What a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowTableSpec {
    pub(crate) level: u32,
    pub(crate) log_size: u32,
    /// Where frames go that no rule matches; `None`: they are dropped.
    pub(crate) miss: Option<u32>,
}

/// Rules from the first index to the last, with one mask.
#[derive(Debug)]
pub(in crate::engine) struct Group {
    pub(in crate::engine) first: u32,
    pub(in crate::engine) last: u32,
    /// The bits that its rules look at. Blocks that are not enabled have none.
    mask: MatchParam,
}

/// A table.
#[derive(Debug)]
pub(in crate::engine) struct FlowTable {
    pub(in crate::engine) spec: FlowTableSpec,
    pub(in crate::engine) groups: BTreeMap<u32, Group>,
    pub(in crate::engine) next_group: u32,
    /// By their index: the lowest one that matches counts.
    rules: BTreeMap<u32, Rule>,
    /// Group, bits that its mask has, and index of each rule: so a frame is searched, not compared with each.
    by_value: BTreeSet<(u32, MatchParam, u32)>,
    /// Destinations and counters of all rules.
    listed: usize,
}

impl FlowTable {
    /// No groups.
    pub(in crate::engine) fn new(spec: FlowTableSpec) -> Self {
        Self { spec, groups: BTreeMap::new(), next_group: 1, rules: BTreeMap::new(), by_value: BTreeSet::new(), listed: 0 }
    }

    /// Returns the bytes of this process that its rules and groups take.
    pub(in crate::engine) fn memory(&self) -> u64 {
        RULE_MEMORY * (self.groups.len() + self.rules.len()) as u64 + LISTED_MEMORY * self.listed as u64
    }

    /// Returns the rule with this index.
    pub(in crate::engine) fn rule_at(&self, index: u32) -> Option<&Rule> {
        self.rules.get(&index)
    }

    /// Returns whether there are rules with one of these indices.
    pub(in crate::engine) fn has_rules(&self, indices: RangeInclusive<u32>) -> bool {
        self.rules.range(indices).next().is_some()
    }

    /// Returns where a rule is searched. `None` if it has no group here.
    fn place(&self, index: u32, rule: &Rule) -> Option<(u32, MatchParam, u32)> {
        Some((rule.group, self.groups.get(&rule.group)?.bits(&rule.value), index))
    }

    /// Sets a rule of a group that is here; the one before.
    pub(in crate::engine) fn insert_rule(&mut self, index: u32, rule: Rule) -> Option<Rule> {
        let old = self.remove_rule(index);
        self.by_value.extend(self.place(index, &rule));
        self.listed += rule.listed();
        self.rules.insert(index, rule);
        old
    }

    /// Removes the rule with this index, and returns it.
    pub(in crate::engine) fn remove_rule(&mut self, index: u32) -> Option<Rule> {
        let old = self.rules.remove(&index)?;
        if let Some(place) = self.place(index, &old) {
            self.by_value.remove(&place);
        }
        self.listed -= old.listed();
        Some(old)
    }
}

/// All flow tables of the port.
#[derive(Debug, Default)]
pub(in crate::engine) struct FlowTables {
    pub(in crate::engine) tables: BTreeMap<u32, FlowTable>,
    /// Where frames begin.
    pub(in crate::engine) root: Option<u32>,
    /// Counters, by number.
    pub(in crate::engine) counters: BTreeMap<u32, Traffic>,
}

/// What the rules say of a frame.
#[derive(Debug, Default)]
pub(in crate::engine) struct Steered {
    /// The TIRs to which it goes, each with the tag of the rule that leads there.
    pub(in crate::engine) tirs: Vec<(u32, u32)>,
    /// The counters of the rules that it matched.
    pub(in crate::engine) counters: Vec<u32>,
    /// The steps of work that it took to find them.
    pub(in crate::engine) steps: u64,
}

/// Tables that a frame passes at most, and queues that get it, on all its ways together.
const MAX_COPIES: usize = 256;
/// Groups that are searched for a frame at most, a step of work each: what comes behind them gets nothing.
const MAX_SEARCHES: usize = 1024;

impl Group {
    pub(in crate::engine) fn new(first: u32, last: u32, criteria: &MatchCriteria) -> Self {
        let mut mask = criteria.mask;
        for (at, block) in mask.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            // A bit of `match_criteria_enable` enables each.
            if criteria.enable >> at & 1 == 0 {
                block.fill(0);
            }
        }
        Self { first, last, mask }
    }

    /// Returns what its rules look at.
    fn bits(&self, fields: &MatchParam) -> MatchParam {
        let mut bits = self.mask;
        bits.iter_mut().zip(fields).for_each(|(bits, field)| *bits &= field);
        bits
    }
}

impl FlowTable {
    /// Returns the rule that a frame matches: that with the lowest index.
    fn rule(&self, frame: &MatchParam) -> Option<&Rule> {
        let of_group = |(number, group): (&u32, &Group)| {
            let least = (*number, group.bits(frame), 0);
            let found = self.by_value.range(least..).next()?;
            ((found.0, &found.1) == (least.0, &least.1)).then_some(found.2)
        };
        self.rules.get(&self.groups.iter().filter_map(of_group).min()?)
    }
}

impl FlowTables {
    /// Returns what the rules say of a frame.
    fn look_up(&self, frame: &MatchParam) -> Steered {
        let mut tables: Vec<u32> = self.root.into_iter().collect();
        let (mut tirs, mut counters) = (Vec::new(), Vec::new());
        let mut searches = 0;
        for _ in 0..MAX_COPIES {
            let Some(table) = tables.pop().and_then(|table| self.tables.get(&table)) else { break };
            searches += table.groups.len();
            if searches > MAX_SEARCHES {
                break;
            }
            let Some(rule) = table.rule(frame) else {
                tables.extend(table.spec.miss);
                continue;
            };
            if rule.action & flow_action::COUNT != 0 {
                counters.extend(&rule.counters);
            }
            if rule.action & flow_action::FORWARD == 0 {
                continue;
            }
            for to in &rule.destinations {
                match to {
                    Destination::Table(table) if tables.len() < MAX_COPIES => tables.push(*table),
                    Destination::Tir(tirn) if tirs.len() < MAX_COPIES => tirs.push((*tirn, rule.tag)),
                    _ => {}
                }
            }
        }
        Steered { tirs, counters, steps: searches as u64 }
    }

    /// Same as [`Self::look_up`], and counts a frame of `len` bytes.
    pub(in crate::engine) fn steer(&mut self, frame: &MatchParam, len: usize) -> Steered {
        let steered = self.look_up(frame);
        for counter in &steered.counters {
            if let Some(traffic) = self.counters.get_mut(counter) {
                traffic.count(len);
            }
        }
        steered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(group: u32, tag: u32, value: MatchParam) -> Rule {
        Rule { group, tag, action: flow_action::ALLOW, value, destinations: Vec::new(), counters: Vec::new() }
    }

    fn table(groups: impl IntoIterator<Item = (u32, Group)>) -> FlowTable {
        let mut table = FlowTable::new(FlowTableSpec { level: 0, log_size: 16, miss: None });
        table.groups.extend(groups);
        table
    }

    /// What a frame of zeros meets in a table with one rule for it.
    fn steered(action: u32) -> Steered {
        let mut table = table([(1, Group::new(0, 0, &MatchCriteria { enable: 1, mask: [0xff; 128] }))]);
        let destinations = vec![Destination::Tir(5), Destination::Tir(6)];
        table.insert_rule(0, Rule { action, destinations, counters: vec![7], ..rule(1, 9, [0; 128]) });
        let mut tables = FlowTables::default();
        tables.tables.insert(1, table);
        tables.root = Some(1);
        tables.look_up(&[0; 128])
    }

    /// A rule may name destinations and counters that its action does not use.
    #[test]
    fn a_rule_does_what_its_action_says() {
        use flow_action::{ALLOW, COUNT, FORWARD};
        for (action, forwards, counts) in [
            (ALLOW, false, false),
            (FORWARD, true, false),
            (COUNT, false, true),
            (FORWARD | COUNT, true, true),
            (ALLOW | FORWARD, true, false),
            (0, false, false),
        ] {
            let found = steered(action);
            assert_eq!(found.tirs, if forwards { vec![(5, 9), (6, 9)] } else { vec![] }, "{action}");
            assert_eq!(found.counters, if counts { vec![7] } else { vec![] }, "{action}");
        }
    }

    #[test]
    fn a_table_takes_memory_for_its_groups_its_rules_and_their_lists() {
        let group = || Group::new(0, 7, &MatchCriteria { enable: 1, mask: [0xff; 128] });
        let mut table = table([(1, group()), (2, group())]);
        assert_eq!(table.memory(), 2 * RULE_MEMORY);
        let lists = Rule { destinations: vec![Destination::Tir(5)], counters: vec![7, 8], ..rule(1, 9, [0; 128]) };
        table.insert_rule(0, lists.clone());
        table.insert_rule(1, rule(1, 9, [1; 128]));
        assert_eq!(table.memory(), 4 * RULE_MEMORY + 3 * LISTED_MEMORY);
        // In the place of another, and away.
        table.insert_rule(1, lists);
        assert_eq!(table.memory(), 4 * RULE_MEMORY + 6 * LISTED_MEMORY);
        table.remove_rule(0);
        table.remove_rule(1);
        assert_eq!(table.memory(), 2 * RULE_MEMORY);
    }

    #[test]
    fn blocks_that_are_not_enabled_are_not_compared() {
        let (outer, others) = (7, 64 + 63);
        for (enable, differs, matches) in
            [(0, outer, true), (1, outer, false), (1, others, true), (2, others, false), (3, others, false)]
        {
            let mut table = table([(1, Group::new(0, 0, &MatchCriteria { enable, mask: [0xff; 128] }))]);
            table.insert_rule(0, rule(1, 9, [0x5a; 128]));
            let mut frame = [0x5a; 128];
            assert!(table.rule(&frame).is_some());
            if let Some(byte) = frame.get_mut(differs) {
                *byte ^= 1;
            }
            assert_eq!(table.rule(&frame).is_some(), matches, "{enable}, byte {differs}");
        }
    }

    /// As if each rule were compared with the frame, in the order of their indices.
    #[test]
    fn the_rule_that_is_found_is_the_first_one_that_matches() {
        let masks: [MatchParam; 4] = [[0; 128], [1; 128], [3; 128], std::array::from_fn(|at| if at == 127 { 7 } else { 0 })];
        // The second group has the lowest indices.
        let firsts = [16, 0, 32, 8];
        let group = |(mask, first)| Group::new(first, first + 7, &MatchCriteria { enable: 3, mask });
        let mut table = table((1..).zip(masks.into_iter().zip(firsts).map(group)));
        let mut state = 1_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for round in 0..3000 {
            let group = random(4) + 1;
            let index = firsts[group as usize - 1] + random(8);
            if random(3) == 0 {
                table.remove_rule(index);
            } else {
                table.insert_rule(index, rule(group, round, [random(8) as u8; 128]));
            }
            let frame = [random(8) as u8; 128];
            let masked = |value: &MatchParam, group: u32| {
                let mask = masks[group as usize - 1];
                std::array::from_fn::<u8, 128, _>(|at| value[at] & mask[at])
            };
            let first = table.rules.values().find(|rule| masked(&rule.value, rule.group) == masked(&frame, rule.group));
            assert_eq!(table.rule(&frame), first, "round {round}");
            assert_eq!(table.by_value.len(), table.rules.len());
        }
    }
}
