//! An etcd of one member in a process of its own, on loopback, killed when the test is over. It is
//! the packages `etcd-server` and `etcd-client` of Debian.

use super::cluster::free_ports;
use super::process::{request, wait_until};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An etcd.
pub(crate) struct Etcd {
    folder: tempfile::TempDir,
    ports: [u16; 2],
    scheme: &'static str,
    flags: Vec<String>,
    process: Option<Child>,
}

impl Etcd {
    /// Starts one, with these flags besides; `None`, with a line that says so, where the machine
    /// has none.
    pub(crate) fn start(scheme: &'static str, flags: &[&str]) -> Option<Etcd> {
        let has = |program: &str| Command::new(program).arg(version_flag(program)).output().is_ok();
        if !has("etcd") || !has("etcdctl") {
            println!("there is no etcd here: install the packages etcd-server and etcd-client");
            return None;
        }
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = Etcd { folder, ports: free_ports(), scheme, flags, process: None };
        etcd.start_again();
        Some(etcd)
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.ports[0])
    }

    /// The table of CONFIG by which hosts find each other here, with these keys besides.
    pub(crate) fn config(&self, more: &str) -> String {
        let url = self.url();
        format!("[discovery]\nsource = \"etcd\"\nendpoints = [\"{url}\"]\nlease_s = 2\n{more}")
    }

    /// Starts it where it does not run, and waits until it answers.
    pub(crate) fn start_again(&mut self) {
        let peers = format!("http://127.0.0.1:{}", self.ports[1]);
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data")).args(["--name", "test"]);
        command.args(["--listen-client-urls", &self.url(), "--advertise-client-urls", &self.url()]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("test={peers}"), "--logger", "zap"]);
        command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]).args(&self.flags);
        self.process = Some(command.stdout(Stdio::null()).stderr(log.unwrap()).spawn().unwrap());
        if self.scheme == "http" {
            let address = SocketAddr::from(([127, 0, 0, 1], self.ports[0]));
            wait_until("etcd is healthy", || {
                request(address, ("GET", "/health"), "", "").is_ok_and(|(status, ..)| status == 200)
            });
        }
    }

    /// Kills it, by SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Sends it a signal, by the flag of `kill`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Deletes all that it has kept; it must not run.
    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.folder.path().join("data")).unwrap();
    }

    /// Runs `etcdctl` with these words; the error is what it says.
    pub(crate) fn ctl(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]).args(words);
        let ran = command.output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if ran.status.success() { Ok(said(&ran.stdout)) } else { Err(said(&ran.stderr)) }
    }

    /// Returns the keys that hosts have.
    pub(crate) fn keys(&self) -> Vec<String> {
        let listed = self.ctl(&["get", "--prefix", "/symphony/", "--keys-only"]).unwrap_or_default();
        listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// A folder for files of the test.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// The flag that has a program print its version.
fn version_flag(program: &str) -> &'static str {
    if program == "etcd" { "--version" } else { "version" }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
