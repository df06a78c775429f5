//! Finding out who of the hosts of CONFIG is there, and where: from CONFIG itself, from an etcd, or
//! from DNS. There is no protocol of the engine's own for it.
//!
//! ```text
//! etcd ──list, watch──▶ thread of the source ──update──▶ thread of the links
//!   ◀──own key, lease──  (EtcdSource, DnsSource)          (its Directory: whom to dial where)
//! ```
//!
//! | file | what is in it |
//! | --- | --- |
//! | `update` | what a source has found out |
//! | `directory` | from updates and handshakes, where to dial each peer |
//! | `running` | the thread of a source, and its end |
//! | `board` | the state of discovery, for others to read |
//! | `dns` | a source: names that stand for the addresses of a role's hosts |
//! | `etcd/` | a source: keys under leases |
//! | `probe` | a single look at the source, for `symphony doctor` |
//!
//! Architecture invariant: losing the source stops changes only. Hosts that are known stay in use,
//! and no link that is up is ever closed for what a source says.

mod board;
mod directory;
mod dns;
mod etcd;
mod probe;
mod running;
mod update;

pub use board::{DiscoveryBoard, DiscoveryView};
pub(crate) use directory::{Directory, DirectoryPeer};
pub use probe::{ProbedSource, probe};
pub(crate) use running::{DiscoveryPlan, RunningDiscovery};
