//! A server in a process of its own, killed when the test is over, and HTTP requests to it.

use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The bound on every wait: ten times the time of the slowest machine seen, so that a server that
/// does not answer by then has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `command` with an output that nobody reads (both, if `errors` too), and fails unless it
/// ends by SIGPIPE without a word, as `cat` does.
pub(crate) fn ends_quietly_unread(command: &mut Command, errors: bool) {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    command.stdin(Stdio::null()).stdout(closed());
    let ended = command.stderr(if errors { closed() } else { Stdio::piped() }).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.signal(), &*said), (Some(13), ""), "{command:?}: {}", ended.status);
}

/// Waits until `holds`, and fails after [`PATIENCE`].
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server that runs until it is stopped or dropped.
pub(crate) struct ServerProcess {
    child: Child,
    urls: Vec<String>,
    /// The lines that came with the first.
    more: String,
}

impl ServerProcess {
    /// Starts `command` and reads its first line, `ready URL...`. What it logs goes to `log`.
    pub(crate) fn start(command: &mut Command, log: Stdio) -> ServerProcess {
        ServerProcess::try_start(command, log).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts `command` as [`ServerProcess::start`] does.
    ///
    /// Errors: it did not say that it is ready.
    pub(crate) fn try_start(command: &mut Command, log: Stdio) -> Result<ServerProcess> {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let more = String::from_utf8_lossy(stdout.buffer()).into_owned();
        let urls =
            line.trim().strip_prefix("ready ").map(|urls| urls.split(' ').map(str::to_owned).collect());
        let mut server = ServerProcess { child, urls: Vec::new(), more };
        server.urls =
            urls.ok_or_else(|| Error::other(format!("the first line is {line:?}, not ready URL")))?;
        Ok(server)
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The URLs at which it serves, in the order of its first line.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The address at which it serves HTTP.
    pub(crate) fn address(&self) -> SocketAddr {
        let address = self.urls[0].strip_prefix("http://").expect("the first URL is of HTTP");
        address.parse().unwrap()
    }

    /// The address at which it serves gRPC. `serve` writes all its lines at once.
    pub(crate) fn grpc_address(&self) -> SocketAddr {
        let line = self.more.lines().find_map(|line| line.strip_prefix("ready grpc://"));
        line.expect("the second line is of gRPC").parse().unwrap()
    }

    /// The address of its admin listener, where it has one. `serve` writes all its lines at once.
    pub(crate) fn admin_address(&self) -> Option<SocketAddr> {
        let line = self.more.lines().find_map(|line| line.strip_prefix("ready admin http://"))?;
        Some(line.parse().unwrap())
    }

    /// Interrupts it as Ctrl-C does, and returns its exit code.
    pub(crate) fn interrupt(&mut self) -> Option<i32> {
        self.signal("-INT");
        self.end()
    }

    /// Sends it a signal, by the flag of `kill`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for its end and returns the exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the process has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // One that has ended already has said why.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends one HTTP request on a connection of its own, so that any core may get it. `headers` are
/// further header lines, each with its end. Returns the status, the head and the body.
///
/// Errors: a connection that is refused or breaks; an answer that is not whole.
pub(crate) fn request(
    address: SocketAddr,
    (method, path): (&str, &str),
    headers: &str,
    body: &str,
) -> Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let torn = || Error::other(format!("no whole answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(torn)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(torn)?;
    // All that came until the end of the connection: a second answer would make it longer.
    let lengths = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if lengths.any(|(_, length)| length.trim().parse() != Ok(body.len())) {
        return Err(torn());
    }
    Ok((status, head.to_owned(), body.to_owned()))
}
