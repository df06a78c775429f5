//! What a link between two hosts knows and decides, without a socket, a thread or a clock: time is
//! an argument, bytes come from the caller and go into its buffer. docs/design/hosts.md.

mod backoff;
mod clock;
mod credits;
mod delays;
mod host_link;
mod terms;

pub use clock::{InstantBounds, MAX_DRIFT_PPB, PeerClock};
pub use delays::DelayWindow;
pub use host_link::{HostLink, Parting, SendRefusal};
pub use terms::LinkTerms;
