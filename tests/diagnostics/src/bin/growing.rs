//! Enums that may grow are matched with `_`.
//~ error: non-exhaustive patterns: `_` not covered
fn name(event: bareverbs::Event) -> &'static str {
    use bareverbs::Event;
    match event {
        Event::Completion(_) => "completion",
    }
}

fn main() {
    let _ = name;
}
