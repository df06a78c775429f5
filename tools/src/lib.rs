//! The commands around the engine: `simulate`, `loadgen` and `profile`. What a binary needs besides reading its command
//! line lives here.
