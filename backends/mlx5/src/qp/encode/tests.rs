//! Golden bytes of requests.
