//! Resources that are only a number.

use bareverbs_mlx5_spec::{
    AllocPdIn, AllocPdOut, AllocQCounterIn, AllocQCounterOut, AllocTransportDomainIn, AllocTransportDomainOut, AllocUarIn,
    AllocUarOut, AllocXrcdIn, AllocXrcdOut, CmdStatus, DeallocPdIn, DeallocPdOut, DeallocQCounterIn, DeallocQCounterOut,
    DeallocTransportDomainIn, DeallocTransportDomainOut, DeallocUarIn, DeallocUarOut, DeallocXrcdIn, DeallocXrcdOut,
    QueryQCounterIn, QueryQCounterOut, View, ViewMut,
};

use super::refusal::{Outcome, Refusal};
use crate::firmware::Firmware;
use crate::registry::{ObjectKind, Resource};
use crate::step::StepContext;

/// Defines the function that hands a number out and the one that takes it back, unless something uses it.
macro_rules! numbers {
    ($($name:literal as $kind:ident:
        $alloc:ident($alloc_in:ident, $alloc_out:ident.$out:ident),
        $free:ident($free_in:ident.$in:ident, $free_out:ident);)+) => {$(
        #[doc = concat!("ALLOC_", $name, ".")]
        pub(super) fn $alloc(
            firmware: &mut Firmware,
            _: &mut StepContext<'_>,
            _: View<'_, $alloc_in>,
            output: &mut ViewMut<'_, $alloc_out>,
        ) -> Outcome {
            let number = firmware.engine.registry_mut().create(ObjectKind::$kind, 0, Vec::new())?;
            output.set($alloc_out::$out, number);
            Ok(())
        }

        #[doc = concat!("DEALLOC_", $name, ".")]
        pub(super) fn $free(
            firmware: &mut Firmware,
            _: &mut StepContext<'_>,
            input: View<'_, $free_in>,
            _: &mut ViewMut<'_, $free_out>,
        ) -> Outcome {
            let id = Resource::new(ObjectKind::$kind, input.get($free_in::$in));
            let freed = firmware.engine.registry_mut().destroy(id);
            freed.map(|_| ()).map_err(|status| Refusal::new(status, "there is none, or it is in use"))
        }
    )+};
}

numbers! {
    "UAR" as Uar:
        alloc_uar(AllocUarIn, AllocUarOut.UAR), dealloc_uar(DeallocUarIn.UAR, DeallocUarOut);
    "PD" as Pd:
        alloc_pd(AllocPdIn, AllocPdOut.PD), dealloc_pd(DeallocPdIn.PD, DeallocPdOut);
    "XRCD" as Xrcd:
        alloc_xrcd(AllocXrcdIn, AllocXrcdOut.XRCD), dealloc_xrcd(DeallocXrcdIn.XRCD, DeallocXrcdOut);
    "TRANSPORT_DOMAIN" as TransportDomain:
        alloc_transport_domain(AllocTransportDomainIn, AllocTransportDomainOut.TRANSPORT_DOMAIN),
        dealloc_transport_domain(DeallocTransportDomainIn.TRANSPORT_DOMAIN, DeallocTransportDomainOut);
    "Q_COUNTER" as CounterSet:
        allocate_counter_set(AllocQCounterIn, AllocQCounterOut.COUNTER_SET_ID),
        dealloc_q_counter(DeallocQCounterIn.COUNTER_SET_ID, DeallocQCounterOut);
}

/// ALLOC_Q_COUNTER: a set of counters that begins at zero.
pub(super) fn alloc_q_counter(
    firmware: &mut Firmware,
    ctx: &mut StepContext<'_>,
    input: View<'_, AllocQCounterIn>,
    output: &mut ViewMut<'_, AllocQCounterOut>,
) -> Outcome {
    allocate_counter_set(firmware, ctx, input, output)?;
    firmware.engine.clear_queue_counts(output.get(AllocQCounterOut::COUNTER_SET_ID) as u8);
    Ok(())
}

/// QUERY_Q_COUNTER: what the queue pairs of the set met since it was last cleared.
pub(super) fn query_q_counter(
    firmware: &mut Firmware,
    _: &mut StepContext<'_>,
    input: View<'_, QueryQCounterIn>,
    output: &mut ViewMut<'_, QueryQCounterOut>,
) -> Outcome {
    let set = input.get(QueryQCounterIn::COUNTER_SET_ID);
    if !firmware.engine.registry().contains(Resource::new(ObjectKind::CounterSet, set)) {
        return Err(Refusal::new(CmdStatus::BadRes, "no such set of counters"));
    }
    let counts = firmware.engine.queue_counts(set as u8);
    for (field, count) in [
        (QueryQCounterOut::RX_WRITE_REQUESTS, counts.writes),
        (QueryQCounterOut::RX_READ_REQUESTS, counts.reads),
        (QueryQCounterOut::RX_ATOMIC_REQUESTS, counts.atomics),
        (QueryQCounterOut::OUT_OF_BUFFER, counts.out_of_buffer),
        (QueryQCounterOut::OUT_OF_SEQUENCE, counts.out_of_sequence),
        (QueryQCounterOut::DUPLICATE_REQUEST, counts.duplicates),
        (QueryQCounterOut::RNR_NAK_RETRY_ERR, counts.receiver_not_ready),
        (QueryQCounterOut::PACKET_SEQ_ERR, counts.sequence_errors),
        (QueryQCounterOut::IMPLIED_NAK_SEQ_ERR, counts.missing_responses),
        (QueryQCounterOut::LOCAL_ACK_TIMEOUT_ERR, counts.timeouts),
    ] {
        // Counters here have 32 bits and wrap.
        output.set(field, count as u32);
    }
    if input.is_set(QueryQCounterIn::CLEAR) {
        firmware.engine.clear_queue_counts(set as u8);
    }
    Ok(())
}
