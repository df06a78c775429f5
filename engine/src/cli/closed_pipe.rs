//! The end of a command whose reader has gone, as in `symphony check CONFIG | head -1`.
//!
//! Rust ignores SIGPIPE, so that a server outlives a client that disconnects; `println!` then
//! panics once nobody reads. A command-line program ends by that signal instead, without a word,
//! as `cat` does: a shell shows exit code 141.

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;
use std::panic::{PanicHookInfo, set_hook, take_hook};

/// Makes the panic of a `print!` or an `eprint!` to a closed pipe the quiet end of the process;
/// every other panic goes on to the hook that there was. For the first line of a program's `main`,
/// not for programs that embed the engine.
pub fn end_quietly_on_closed_pipe() {
    let next = take_hook();
    set_hook(Box::new(move |panic| {
        if is_of_closed_pipe(panic) {
            // It does not return unless the signal can't be raised: then the panic is shown.
            let _ = emulate_default_handler(SIGPIPE);
        }
        next(panic);
    }));
}

fn is_of_closed_pipe(panic: &PanicHookInfo<'_>) -> bool {
    let closed = format!(": {}", std::io::Error::from_raw_os_error(rustix::io::Errno::PIPE.raw_os_error()));
    panic
        .payload_as_str()
        .is_some_and(|text| text.starts_with("failed printing to std") && text.ends_with(&closed))
}
