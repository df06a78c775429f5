//! The symphony binary.
fn main() {}
