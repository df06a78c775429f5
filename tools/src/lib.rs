//! The library of the command-line tools. A binary of `src/bin` only reads its arguments and
//! calls in here.

pub mod loadgen;
