//! TIS, TIR and tables of receive queues as firmware commands create, change and destroy them.

use bareverbs_mlx5_spec::CmdStatus;

use super::Engine;
use super::nic::{RssSpec, TirSpec, TisSpec};
use crate::registry::{ObjectKind, Resource};

impl Engine {
    /// Creates a TIS in a transport domain; its number.
    pub(crate) fn create_tis(&mut self, spec: TisSpec) -> Result<u32, CmdStatus> {
        let uses = vec![Resource::new(ObjectKind::TransportDomain, spec.domain)];
        let tisn = self.shared.registry.create(ObjectKind::Tis, 0, uses)?;
        self.nic.tiss.insert(tisn, spec);
        Ok(tisn)
    }

    /// Returns what a TIS was created with.
    pub(crate) fn query_tis(&self, tisn: u32) -> Result<TisSpec, CmdStatus> {
        self.nic.tiss.get(&tisn).copied().ok_or(CmdStatus::BadRes)
    }

    /// Ends a TIS that nothing uses.
    pub(crate) fn destroy_tis(&mut self, tisn: u32) -> Result<(), CmdStatus> {
        self.shared.registry.destroy(Resource::new(ObjectKind::Tis, tisn))?;
        self.nic.tiss.remove(&tisn);
        Ok(())
    }

    /// Creates a TIR; its number.
    pub(crate) fn create_tir(&mut self, spec: TirSpec) -> Result<u32, CmdStatus> {
        let uses = vec![Resource::new(ObjectKind::TransportDomain, spec.domain), spec.target.resource()];
        let tirn = self.shared.registry.create(ObjectKind::Tir, 0, uses)?;
        self.nic.tirs.insert(tirn, spec);
        Ok(tirn)
    }

    /// Changes a TIR: which frames of its own domain it takes, its hash.
    pub(crate) fn modify_tir(&mut self, tirn: u32, self_loopback: Option<u32>, rss: Option<RssSpec>) -> Result<(), CmdStatus> {
        let tir = self.nic.tirs.get_mut(&tirn).ok_or(CmdStatus::BadRes)?;
        tir.self_loopback = self_loopback.unwrap_or(tir.self_loopback);
        tir.rss = rss.unwrap_or(tir.rss);
        Ok(())
    }

    /// Ends a TIR that no rule leads to.
    pub(crate) fn destroy_tir(&mut self, tirn: u32) -> Result<(), CmdStatus> {
        self.shared.registry.destroy(Resource::new(ObjectKind::Tir, tirn))?;
        self.nic.tirs.remove(&tirn);
        Ok(())
    }

    /// Creates a table of receive queues; its number.
    pub(crate) fn create_queue_table(&mut self, queues: Vec<u32>) -> Result<u32, CmdStatus> {
        let uses = queues.iter().map(|rqn| Resource::new(ObjectKind::Rq, *rqn)).collect();
        let rqtn = self.shared.registry.create(ObjectKind::Rqt, table_memory(&queues), uses)?;
        self.nic.queue_tables.insert(rqtn, queues);
        Ok(rqtn)
    }

    /// Replaces the receive queues of a table, all at once. Refused with [`CmdStatus::BadRes`] if there is no such table or one
    /// of the queues does not exist: then nothing changes.
    pub(crate) fn modify_queue_table(&mut self, rqtn: u32, queues: Vec<u32>) -> Result<(), CmdStatus> {
        let Self { shared, nic, .. } = self;
        let place = nic.queue_tables.get_mut(&rqtn).ok_or(CmdStatus::BadRes)?;
        let table = Resource::new(ObjectKind::Rqt, rqtn);
        let queue = |rqn: u32| Resource::new(ObjectKind::Rq, rqn);
        if queues.iter().any(|rqn| !shared.registry.contains(queue(*rqn))) {
            return Err(CmdStatus::BadRes);
        }
        // Both lists are there at the same time.
        if queues.len() > place.len() && !shared.registry.has_memory(table_memory(&queues)) {
            return Err(CmdStatus::NoResources);
        }
        // The new ones first: one that stays is never without a reference.
        for rqn in &queues {
            shared.registry.change_use(table, None, Some(queue(*rqn)))?;
        }
        for rqn in place.iter() {
            shared.registry.change_use(table, Some(queue(*rqn)), None)?;
        }
        shared.registry.set_memory(table, table_memory(&queues));
        *place = queues;
        Ok(())
    }

    /// Ends a table that no TIR uses.
    pub(crate) fn destroy_queue_table(&mut self, rqtn: u32) -> Result<(), CmdStatus> {
        self.shared.registry.destroy(Resource::new(ObjectKind::Rqt, rqtn))?;
        self.nic.queue_tables.remove(&rqtn);
        Ok(())
    }
}

/// Bytes of this process that a table takes: numbers, and references in the registry.
fn table_memory(queues: &[u32]) -> u64 {
    48 * queues.len() as u64
}
