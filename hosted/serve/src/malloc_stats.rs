//! What the program's heap holds, as its C library counts it.

/// Bytes that are in use, in all arenas and in what is mapped by itself; what is free between them is not counted. `None`
/// where the C library does not tell: it is not glibc.
#[cfg(target_env = "gnu")]
pub(crate) fn bytes_in_use() -> Option<usize> {
    use malloc_info::info::{SystemType, TotalType};
    let info = malloc_info::malloc_info().ok()?;
    let obtained: usize =
        info.system.iter().filter(|system| system.r#type == SystemType::Current).map(|system| system.size).sum();
    let total = |wanted: &[TotalType]| -> usize {
        info.total.iter().filter(|total| wanted.contains(&total.r#type)).map(|total| total.size).sum()
    };
    Some((obtained + total(&[TotalType::Mmap])).saturating_sub(total(&[TotalType::Fast, TotalType::Rest])))
}

/// Bytes that are in use: this C library does not tell.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn bytes_in_use() -> Option<usize> {
    None
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Other tests of this process hold and free the memory of whole devices meanwhile: the count is looked at in another.
    #[test]
    fn what_is_held_is_counted_and_what_is_freed_is_not() {
        let name = "malloc_stats::tests::in_a_process_of_its_own";
        let run = std::process::Command::new(std::env::current_exe().unwrap()).args(["--exact", "--ignored", name]).output();
        let output = run.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[ignore = "run by the test above, in a process of its own"]
    fn in_a_process_of_its_own() {
        const HELD: usize = 64 << 20;
        for piece in [HELD, 4096] {
            let before = bytes_in_use().unwrap();
            let held: Vec<Vec<u8>> = (0..HELD / piece).map(|_| vec![1; piece]).collect();
            let with = bytes_in_use().unwrap();
            assert!(with >= before + HELD / 2, "{before} {with}");
            drop(held);
            let after = bytes_in_use().unwrap();
            assert!(after <= with - HELD / 2, "{with} {after}");
        }
    }
}
