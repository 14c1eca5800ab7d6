//! Flow tables: groups of rules with one mask, and what becomes of a frame that a rule matches.

use std::collections::BTreeMap;

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
/// Level of a table at most (`max_ft_level`). Levels only order the tables.
pub(crate) const MAX_LEVEL: u32 = 96;
/// Bytes of this process that a rule or a group takes.
pub(in crate::engine) const RULE_MEMORY: u64 = 512;

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
    pub(in crate::engine) criteria: MatchCriteria,
}

/// A table.
#[derive(Debug)]
pub(in crate::engine) struct FlowTable {
    pub(in crate::engine) spec: FlowTableSpec,
    pub(in crate::engine) groups: BTreeMap<u32, Group>,
    pub(in crate::engine) next_group: u32,
    /// By their index: the lowest one that matches counts.
    pub(in crate::engine) rules: BTreeMap<u32, Rule>,
}

impl FlowTable {
    /// Returns the bytes of this process that its rules and groups take.
    pub(in crate::engine) fn memory(&self) -> u64 {
        RULE_MEMORY * (self.groups.len() + self.rules.len()) as u64
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
/// Rules that are looked at for a frame at most: what comes behind them gets nothing.
const MAX_RULES: usize = 1 << 17;
/// Rules that are looked at in one step of work.
const RULES_PER_STEP: usize = 64;

/// Returns the blocks that a bit of `match_criteria_enable` enables each.
fn blocks(parameter: &MatchParam) -> &[[u8; 64]] {
    parameter.as_chunks().0
}

/// Returns the words of a block.
fn words(block: &[u8; 64]) -> impl Iterator<Item = u64> {
    block.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

impl Group {
    /// Returns whether the fields of a frame are those of a rule.
    fn matches(&self, value: &MatchParam, frame: &MatchParam) -> bool {
        let same = |mask: &[u8; 64], value: &[u8; 64], frame: &[u8; 64]| {
            words(mask).zip(words(value)).zip(words(frame)).all(|((mask, value), frame)| (value ^ frame) & mask == 0)
        };
        let blocks = blocks(&self.criteria.mask).iter().zip(blocks(value)).zip(blocks(frame)).enumerate();
        let mut enabled = blocks.filter(|(at, _)| self.criteria.enable >> at & 1 != 0);
        enabled.all(|(_, ((mask, value), frame))| same(mask, value, frame))
    }
}

impl FlowTable {
    /// Returns the rule that a frame matches: that with the lowest index.
    fn rule(&self, frame: &MatchParam) -> Option<&Rule> {
        let is_match = |rule: &&Rule| self.groups.get(&rule.group).is_some_and(|group| group.matches(&rule.value, frame));
        self.rules.values().find(is_match)
    }
}

impl FlowTables {
    /// Returns what the rules say of a frame.
    fn look_up(&self, frame: &MatchParam) -> Steered {
        let mut tables: Vec<u32> = self.root.into_iter().collect();
        let (mut tirs, mut counters) = (Vec::new(), Vec::new());
        let mut looked_at = 0;
        for _ in 0..MAX_COPIES {
            let Some(table) = tables.pop().and_then(|table| self.tables.get(&table)) else { break };
            looked_at += table.rules.len();
            if looked_at > MAX_RULES {
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
        Steered { tirs, counters, steps: (looked_at / RULES_PER_STEP) as u64 }
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

    #[test]
    fn blocks_that_are_not_enabled_are_not_compared() {
        let (outer, others) = (7, 64 + 63);
        for (enable, differs, matches) in
            [(0, outer, true), (1, outer, false), (1, others, true), (2, others, false), (3, others, false)]
        {
            let group = Group { first: 0, last: 0, criteria: MatchCriteria { enable, mask: [0xff; 128] } };
            let mut frame = [0x5a; 128];
            assert!(group.matches(&[0x5a; 128], &frame));
            if let Some(byte) = frame.get_mut(differs) {
                *byte ^= 1;
            }
            assert_eq!(group.matches(&[0x5a; 128], &frame), matches, "{enable}, byte {differs}");
        }
    }
}
