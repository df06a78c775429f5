//! What the command-line tools are made of. A binary of `src/bin` only reads its arguments and
//! calls in here.

pub mod loadgen;
