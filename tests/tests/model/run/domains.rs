//! Protection domains: what requests that bind or register name of them, regions that move, domains that are freed.

use bareverbs::error::{
    AllocFastMrError, AllocMwError, CreateAhError, CreateQpError, CreateSrqError, DeallocPdError, PostSendError, RegMrError,
    SgeFault,
};
use bareverbs::{Access, AddressVector, MrChange, MwType, QpInit, QpType, SendWr, SrqCap, SrqInit};

use super::Run;
use crate::hosts::CAP;
use crate::program::{Foreign, STRIPE, domain_of, of_domain};

/// Returns a window, or what is registered, and a region: of the domain of the pair, unless one is `foreign`.
pub(super) fn domains(pair: usize, key: usize, region: usize, foreign: Option<Foreign>) -> (usize, usize) {
    let domain = |of: Foreign| domain_of(pair) ^ usize::from(foreign == Some(of));
    (of_domain(key, domain(Foreign::Key)), of_domain(region, domain(Foreign::Region)))
}

impl Run<'_> {
    /// Moves a region to the other domain, where its keys are of no use to its queue pairs, and back.
    pub(super) fn move_region(&mut self, at: usize, index: usize) -> Result<(), String> {
        self.settle(8, false)?;
        let wr_id = self.next_wr_id();
        let side = &mut self.sides[at];
        if side.is_posted(index) {
            return Ok(());
        }
        let home = domain_of(index);
        let is_bound = side.is_bound(index);
        for domain in [1 - home, home] {
            let memory = side.memory.remove(index);
            let change = MrChange { pd: Some(side.pds[domain]), ..MrChange::default() };
            let (region, is_refused) = match side.verbs.rereg_mr(memory.region, &change) {
                Ok(region) => (region, false),
                Err(refused) => (refused.returned.ok_or("the region did not come back")?, true),
            };
            if is_refused != is_bound {
                return Err(format!("region {index} moves to domain {domain}: refused {is_refused}"));
            }
            let is_away = domain != home && !is_refused;
            let must = if is_away { domain } else { home };
            if side.verbs.mr_info(region.handle()).map(|info| info.pd) != Ok(side.pds[must]) {
                return Err(format!("region {index} is not in domain {must}"));
            }
            if is_away {
                // The first pairs are reliable connections, one of each domain.
                let sges = [region.sge(0, 1)];
                let wr = SendWr::send(&sges).id(wr_id);
                let posted = side.qps[home].send().post(&wr);
                if !matches!(posted, Err(PostSendError::Sge { index: 0, fault: SgeFault::Domain, .. })) {
                    return Err(format!("a region that has moved to another domain: {posted:?}"));
                }
            }
            side.memory.insert(index, crate::hosts::Memory { region, ..memory });
        }
        Ok(())
    }

    /// Frees a domain that has objects, which is refused, and makes objects in one that was freed, which is refused too.
    pub(super) fn free_domain(&mut self, at: usize, domain: usize) -> Result<(), String> {
        let side = &mut self.sides[at];
        match side.verbs.dealloc_pd(side.pds[domain]) {
            Err(DeallocPdError::Busy { .. }) => {}
            other => return Err(format!("freeing domain {domain} gave {other:?}")),
        }
        let pd = side.verbs.alloc_pd().map_err(|error| error.to_string())?;
        if side.pds.contains(&pd) {
            return Err(format!("{pd:?} twice"));
        }
        side.verbs.dealloc_pd(pd).map_err(|error| error.to_string())?;
        let cqs = (side.cqs[0].handle(), side.cqs[1].handle());
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cqs.0, recv_cq: cqs.1, cap: CAP, sq_sig_all: false };
        let srq = SrqInit { pd, cap: SrqCap { max_wr: 1, max_sge: 1 } };
        let buffer = side.host.memory(STRIPE).whole();
        let verbs = &mut side.verbs;
        let refused = [
            matches!(verbs.dealloc_pd(pd), Err(DeallocPdError::Stale)),
            verbs.reg_mr(pd, buffer, Access::empty()).is_err_and(|refused| refused.error == RegMrError::StalePd),
            matches!(verbs.alloc_mw(pd, MwType::Type2), Err(AllocMwError::StalePd)),
            matches!(verbs.alloc_fast_mr(pd, 1), Err(AllocFastMrError::StalePd)),
            matches!(verbs.create_qp(&init), Err(CreateQpError::StalePd)),
            matches!(verbs.create_srq(&srq), Err(CreateSrqError::StalePd)),
            matches!(verbs.create_ah(pd, &AddressVector::default()), Err(CreateAhError::StalePd)),
        ];
        if refused.contains(&false) { Err(format!("of a freed domain, refused: {refused:?}")) } else { Ok(()) }
    }
}
