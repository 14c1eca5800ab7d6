//! Verbs that keep their queues: the type of the tests of the core.

include!("../../core/src/tests/kept_verbs.rs");
