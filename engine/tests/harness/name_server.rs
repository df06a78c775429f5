//! A name server on loopback, at port 53 of an address of the test's own, which answers questions
//! for IPv4 addresses; and the command before a host's that has the system's resolver ask it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The bytes of a message's header.
const HEADER: usize = 12;

/// The type of questions for IPv4 addresses.
const TYPE_A: u16 = 1;

/// A name server, until it is dropped.
pub(crate) struct NameServer {
    /// The addresses of each name.
    pub(crate) names: Arc<Mutex<BTreeMap<String, Vec<Ipv4Addr>>>>,
    /// False while it answers nothing.
    pub(crate) answers: Arc<AtomicBool>,
    address: Ipv4Addr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Starts one. The error says why there can be none.
    pub(crate) fn start() -> Result<NameServer, String> {
        let id = std::process::id();
        let address = Ipv4Addr::new(127, 53, (id % 251) as u8, (1 + id / 251 % 250) as u8);
        let socket = UdpSocket::bind((address, 53)).map_err(|error| format!("port 53: {error}"))?;
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let names = Arc::<Mutex<BTreeMap<String, Vec<Ipv4Addr>>>>::default();
        let (answers, stop) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (known, does_answer, stopped) = (Arc::clone(&names), Arc::clone(&answers), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut question = [0; 512];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
                if does_answer.load(Ordering::Relaxed) {
                    socket.send_to(&answer(&question[..length], &known.lock().unwrap()), from).unwrap();
                }
            }
        });
        Ok(NameServer { names, answers, address, stop, thread: Some(thread) })
    }

    /// Sets the addresses of a name.
    pub(crate) fn set(&self, name: &str, addresses: &[Ipv4Addr]) {
        self.names.lock().unwrap().insert(name.to_owned(), addresses.to_vec());
    }

    /// Returns the words before a command whose resolver asks this server only: it runs in a mount
    /// namespace of its own. `folder` gets the file that says so.
    pub(crate) fn before(&self, folder: &Path) -> Vec<String> {
        let file = folder.join("resolv.conf");
        let text = format!("nameserver {}\noptions timeout:1 attempts:1\n", self.address);
        std::fs::write(&file, text).unwrap();
        let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", file.display());
        ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned).into()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Returns the answer to a message with one question (RFC 1035, section 4).
fn answer(question: &[u8], names: &BTreeMap<String, Vec<Ipv4Addr>>) -> Vec<u8> {
    let mut labels = Vec::new();
    let mut at = HEADER;
    while question[at] != 0 {
        let label = &question[at + 1..=at + usize::from(question[at])];
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += label.len() + 1;
    }
    let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
    let found = names.get(&labels.join("."));
    let addresses = found.filter(|_| kind == TYPE_A).map_or(&[][..], Vec::as_slice);
    // An answer, by one who may say so; 3 is "no such name".
    let flags = 0x8580_u16 | if found.is_some() { 0 } else { 3 };
    let mut message = question[..2].to_vec();
    message.extend([flags, 1, addresses.len() as u16, 0, 0].iter().flat_map(|field| field.to_be_bytes()));
    message.extend(&question[HEADER..at + 5]);
    for address in addresses {
        // The name of the question, an address of the Internet, for no time, of four bytes.
        message.extend([0xc0, HEADER as u8, 0, TYPE_A as u8, 0, 1, 0, 0, 0, 0, 0, 4]);
        message.extend(address.octets());
    }
    message
}
