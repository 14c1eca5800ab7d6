//! Decodes receive WQEs: a list of data segments, after a next segment if the queue is shared.

use bareverbs_mlx5_spec::{INVALID_LKEY, View, WqeDataSeg, WqeInlineSeg, WqeSrqNextSeg};

use crate::decoded::Decoded;
use crate::send::{check_data, data_length};

/// Decodes the receive WQE in `bytes`, one whole stride of the ring. `shared` is set for a shared receive queue.
pub fn decode(bytes: &[u8], shared: bool) -> Decoded {
    let mut out = Decoded::new(0);
    let mut at = 0;
    if shared && let Some(head) = head::<WqeSrqNextSeg>(&mut out, "next segment", bytes, &mut at) {
        out.title = format!("shared receive, next is {:#x}: ", head.get(WqeSrqNextSeg::NEXT_WQE_INDEX));
    } else {
        out.title = "receive: ".into();
    }
    let (mut segments, mut total, mut ended) = (0, 0u64, false);
    while at < bytes.len() {
        let here = at;
        let name = if ended { "unused".into() } else { format!("data segment {segments}") };
        let Some(data) = head::<WqeDataSeg>(&mut out, &name, bytes, &mut at) else { break };
        if ended {
            continue;
        }
        if data.get(WqeDataSeg::LKEY) == INVALID_LKEY && data.get(WqeDataSeg::BYTE_COUNT) == 0 {
            if let Some(section) = out.sections.last_mut() {
                section.name = "end of the list".into();
            }
            ended = true;
            continue;
        }
        if WqeInlineSeg::INLINE.take(data.get(WqeDataSeg::BYTE_COUNT)) != 0 && data.get(WqeDataSeg::BYTE_COUNT) != 1 << 31 {
            out.error(here, "byte_count has the inline bit, and a receive has no inline data");
        }
        check_data(&mut out, &data, here);
        total = total.saturating_add(data_length(&data));
        segments += 1;
    }
    if segments == 0 && !bytes.is_empty() {
        out.note(0, "no data segment: only an empty message fits");
    }
    let plural = if segments == 1 { "" } else { "s" };
    out.title.push_str(&format!("{total} bytes in {segments} data segment{plural}"));
    out.finish()
}

fn head<'a, L: bareverbs_mlx5_spec::Layout>(
    out: &mut Decoded,
    name: &str,
    bytes: &'a [u8],
    at: &mut usize,
) -> Option<View<'a, L>> {
    let rest = bytes.get(*at..).unwrap_or_default();
    let Some(segment) = rest.get(..L::SIZE) else {
        out.error(*at, format!("{name}: {} bytes needed, {} are left", L::SIZE, rest.len()));
        out.payload("not decoded", rest, *at);
        *at = bytes.len();
        return None;
    };
    out.section::<L>(name, segment, *at);
    *at += L::SIZE;
    View::new(segment)
}
