//! Resources that are only a number.

use bareverbs_mlx5_spec::{
    AllocPdIn, AllocPdOut, AllocQCounterIn, AllocQCounterOut, AllocTransportDomainIn, AllocTransportDomainOut, AllocUarIn,
    AllocUarOut, AllocXrcdIn, AllocXrcdOut, CmdStatus, DeallocPdIn, DeallocPdOut, DeallocQCounterIn, DeallocQCounterOut,
    DeallocTransportDomainIn, DeallocTransportDomainOut, DeallocUarIn, DeallocUarOut, DeallocXrcdIn, DeallocXrcdOut,
    QueryQCounterIn, QueryQCounterOut, View, ViewMut,
};

use super::{Outcome, Refusal};
use crate::env::Env;
use crate::firmware::Firmware;

/// Defines the function that hands a number out and the one that takes it back, unless `busy`.
macro_rules! numbers {
    ($($name:literal in $table:ident:
        $alloc:ident($alloc_in:ident, $alloc_out:ident.$out:ident),
        $free:ident($free_in:ident.$in:ident, $free_out:ident), busy if $busy:expr;)+) => {$(
        #[doc = concat!("ALLOC_", $name, ".")]
        pub(super) fn $alloc(
            firmware: &mut Firmware,
            _: &mut Env<'_>,
            _: View<'_, $alloc_in>,
            output: &mut ViewMut<'_, $alloc_out>,
        ) -> Outcome {
            output.set($alloc_out::$out, firmware.$table.allocate()?);
            Ok(())
        }

        #[doc = concat!("DEALLOC_", $name, ".")]
        pub(super) fn $free(
            firmware: &mut Firmware,
            _: &mut Env<'_>,
            input: View<'_, $free_in>,
            _: &mut ViewMut<'_, $free_out>,
        ) -> Outcome {
            let number = input.get($free_in::$in);
            let busy: fn(&Firmware, u32) -> bool = $busy;
            if busy(firmware, number) {
                return Err(Refusal::new(CmdStatus::ResBusy, "still in use"));
            }
            Ok(firmware.$table.free(number)?)
        }
    )+};
}

numbers! {
    "UAR" in uars:
        alloc_uar(AllocUarIn, AllocUarOut.UAR), dealloc_uar(DeallocUarIn.UAR, DeallocUarOut), busy if |_, _| false;
    "PD" in pds:
        alloc_pd(AllocPdIn, AllocPdOut.PD), dealloc_pd(DeallocPdIn.PD, DeallocPdOut),
        busy if |firmware, pd| firmware.engine.pd_in_use(pd);
    "XRCD" in xrcds:
        alloc_xrcd(AllocXrcdIn, AllocXrcdOut.XRCD), dealloc_xrcd(DeallocXrcdIn.XRCD, DeallocXrcdOut), busy if |_, _| false;
    "TRANSPORT_DOMAIN" in transport_domains:
        alloc_transport_domain(AllocTransportDomainIn, AllocTransportDomainOut.TRANSPORT_DOMAIN),
        dealloc_transport_domain(DeallocTransportDomainIn.TRANSPORT_DOMAIN, DeallocTransportDomainOut), busy if |_, _| false;
    "Q_COUNTER" in counters:
        allocate_counter_set(AllocQCounterIn, AllocQCounterOut.COUNTER_SET_ID),
        dealloc_q_counter(DeallocQCounterIn.COUNTER_SET_ID, DeallocQCounterOut), busy if |_, _| false;
}

/// ALLOC_Q_COUNTER: a set of counters that begins at zero.
pub(super) fn alloc_q_counter(
    firmware: &mut Firmware,
    env: &mut Env<'_>,
    input: View<'_, AllocQCounterIn>,
    output: &mut ViewMut<'_, AllocQCounterOut>,
) -> Outcome {
    allocate_counter_set(firmware, env, input, output)?;
    firmware.engine.clear_queue_counts(output.get(AllocQCounterOut::COUNTER_SET_ID) as u8);
    Ok(())
}

/// QUERY_Q_COUNTER: what the queue pairs of the set met since it was last cleared.
pub(super) fn query_q_counter(
    firmware: &mut Firmware,
    _: &mut Env<'_>,
    input: View<'_, QueryQCounterIn>,
    output: &mut ViewMut<'_, QueryQCounterOut>,
) -> Outcome {
    let set = input.get(QueryQCounterIn::COUNTER_SET_ID);
    if !firmware.counters.contains(set) {
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
