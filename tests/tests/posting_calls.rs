//! Every public call that posts a request, and why there is one beside `post`. A new one needs a reason here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Types whose values post.
const QUEUES: [&str; 4] = ["SendQueue", "SendBatch", "RecvQueue", "SharedReceiveQueue"];

/// Call, and its reason.
const CALLS: [(&str, &str); 16] = [
    ("SendQueue::post", "one request, one doorbell: ibv_post_send"),
    ("SendQueue::post_list", "requests that lie in memory already: the list of ibv_post_send"),
    ("SendQueue::batch", "requests made one after the other, one doorbell: ibv_wr_start to ibv_wr_complete"),
    ("SendBatch::post", "the same, as part of a batch"),
    ("SendQueue::bind_type1", "it returns the key that the window has from then on: ibv_bind_mw"),
    ("SendBatch::bind_type1", "the same, as part of a batch"),
    ("SendQueue::post_reg_mr", "it returns what was registered, and a program without registrations contains none of it"),
    ("SendBatch::post_reg_mr", "the same, as part of a batch"),
    ("SendQueue::post_masked", "beyond IBTA, and a program without masked atomics contains none of them"),
    ("SendBatch::post_masked", "the same, as part of a batch"),
    ("SendQueue::post_masked_to_srq", "of an XRC initiator: MaskedWr has no place for the number"),
    ("SendBatch::post_masked_to_srq", "the same, as part of a batch"),
    ("RecvQueue::post", "one receive, one doorbell: ibv_post_recv"),
    ("RecvQueue::post_list", "the list of ibv_post_recv"),
    ("SharedReceiveQueue::post", "ibv_post_srq_recv"),
    ("SharedReceiveQueue::post_list", "the list of ibv_post_srq_recv"),
];

/// Returns a source with each signature on one line.
fn joined(source: &str) -> String {
    let mut lines = String::new();
    let mut open = false;
    for line in source.lines() {
        open = if open { !line.contains('{') } else { line.trim_start().starts_with("pub fn ") && !line.contains('{') };
        lines.push_str(if lines.ends_with('\n') || lines.is_empty() { line } else { line.trim_start() });
        lines.push(if open { ' ' } else { '\n' });
    }
    lines
}

/// The public calls of these types that take a request or begin a batch.
fn found(types: &[&str]) -> BTreeMap<String, String> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src")];
    let mut found = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let mut of = None;
            for line in joined(&fs::read_to_string(&path).unwrap()).lines() {
                if line.starts_with("impl") {
                    let subject = line.split(" for ").last().unwrap_or(line);
                    of = types.iter().find(|name| subject.contains(&format!(" {name}<"))).copied();
                } else if line.starts_with('}') {
                    of = None;
                }
                let Some(of) = of else { continue };
                let Some((name, arguments)) = line.trim_start().strip_prefix("pub fn ").and_then(|call| call.split_once('('))
                else {
                    continue;
                };
                let request = ["SendWr", "RecvWr", "MaskedWr", "Type1Bind", "FastReg<", "SendOp"];
                let posts = arguments.trim_start().starts_with("&mut self")
                    && request.iter().any(|request| arguments.contains(request));
                if posts || line.contains("-> SendBatch") {
                    found.insert(format!("{of}::{name}"), path.display().to_string());
                }
            }
        }
    }
    found
}

#[test]
fn each_call_that_posts_has_a_reason() {
    let found = found(&QUEUES);
    let known: BTreeMap<&str, &str> = CALLS.into_iter().collect();
    let without: Vec<_> = found.iter().filter(|(call, _)| !known.contains_key(call.as_str())).collect();
    let gone: Vec<_> = known.keys().filter(|call| !found.contains_key(**call)).collect();
    assert!(without.is_empty() && gone.is_empty(), "without a reason: {without:?}; not there any more: {gone:?}");
    assert!(known.values().all(|reason| reason.len() > 10));
}

#[test]
fn the_control_path_posts_nothing() {
    assert_eq!(found(&["Verbs"]), BTreeMap::new());
}
