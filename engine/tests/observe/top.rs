//! `symphony top` against a server: one frame as text, and a session in a pseudo-terminal, which
//! util-linux' `script` makes and whose screen the crate vt100 reads.

use super::{CONFIG, PATIENCE, Server, wait_until};
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

fn symphony() -> Command {
    Command::new(env!("CARGO_BIN_EXE_symphony"))
}

#[test]
fn one_frame_is_printed_as_text() {
    let server = Server::start(CONFIG);
    let address = server.address.to_string();
    (0..10).for_each(|_| assert_eq!(server.infer("fast"), 200));
    let top = |url: &str| {
        let output = symphony().args(["top", url, "--once", "--interval", "0.1"]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, frame, trouble) = top(&format!("http://{address}"));
    assert_eq!((code, trouble.as_str()), (Some(0), ""), "{frame}");
    assert!(frame.lines().count() == 23 && frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
    for words in ["Symphony", &address, "ready", "GPUs busy", " of 2", "▸ fast", "SLO 20000 ms"] {
        assert!(frame.contains(words), "no {words:?} in\n{frame}");
    }
    let (code, _, trouble) = top("https://127.0.0.1:1");
    assert!(code == Some(2) && trouble.contains("is no address of a server"), "{trouble}");
    let (code, _, trouble) = top("127.0.0.1:1");
    assert!(code == Some(1) && trouble.contains("is the server running there?"), "{trouble}");
    let output = symphony().args(["top", &address]).output().unwrap();
    let trouble = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && trouble.contains("--once"), "{trouble}");
}

#[test]
fn a_session_takes_keys_outlives_its_server_and_leaves_the_terminal_as_it_was() {
    let mut server = Server::start(CONFIG);
    (0..10).for_each(|_| assert_eq!(server.infer("fast"), 200));
    let command = format!(
        "stty rows 24 cols 80; {} top http://{} --interval 0.1",
        env!("CARGO_BIN_EXE_symphony"),
        server.address
    );
    let mut session = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (rows, columns) = (NonZero::new(24).unwrap(), NonZero::new(80).unwrap());
    let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
    let (shown, mut output) = (Arc::clone(&screen), session.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut bytes) {
            shown.lock().unwrap().process(&bytes[..length]);
        }
    });
    let text = || screen.lock().unwrap().screen().contents();
    let see = |words: &str| {
        wait_until(&format!("{words:?} is on the screen within {PATIENCE:?}"), || text().contains(words));
    };
    let mut keys = session.stdin.take().unwrap();
    let mut press = |key: &str| {
        keys.write_all(key.as_bytes()).unwrap();
        keys.flush().unwrap();
    };
    see("● ready");
    see("▸ fast");
    assert!(screen.lock().unwrap().screen().alternate_screen());
    press("\r");
    see("fast   emulated, SLO 20000 ms, batches up to 8");
    see("l(1) 1.5   l(4) 3.0   l(8) 5.0");
    press("?");
    see("quits, as Ctrl-C does");
    press("?");
    server.process.kill();
    see("✗ no answer");
    press("q");
    assert_eq!(session.wait().unwrap().code(), Some(0));
    reader.join().unwrap();
    let end = screen.lock().unwrap();
    assert!(!end.screen().alternate_screen() && !end.screen().hide_cursor(), "{}", end.screen().contents());
}
