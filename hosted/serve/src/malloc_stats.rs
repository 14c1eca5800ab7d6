//! Size of the heap in use, according to the C library.

/// Returns the bytes in use, in all arenas and in separately mapped blocks, without the free blocks between them.
/// Returns `None` where the C library has no `mallinfo2(3)`: it is not glibc, or older than 2.33.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the function is looked up by its name, so that older libraries can be linked")]
pub(crate) fn bytes_in_use() -> Option<usize> {
    // SAFETY: the name ends with a zero byte.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: glibc's function of this name has no arguments and returns this structure (malloc.h).
    let mallinfo2 = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::mallinfo2>(symbol) };
    let counts = mallinfo2();
    Some(counts.uordblks + counts.hblkhd)
}

/// Returns `None`: this C library does not count.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn bytes_in_use() -> Option<usize> {
    None
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Runs in another process, because other tests of this one allocate and free whole devices meanwhile.
    #[test]
    fn allocated_bytes_are_counted_until_they_are_freed() {
        let name = "malloc_stats::tests::in_a_separate_process";
        let run = std::process::Command::new(std::env::current_exe().unwrap()).args(["--exact", "--ignored", name]).output();
        let output = run.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[ignore = "run by the test above, in a separate process"]
    fn in_a_separate_process() {
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
