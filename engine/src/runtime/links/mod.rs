//! The thread of a host's links: one pinned thread multiplexes the connections to all other hosts.
//! It moves bytes between sockets and the `Host` (`runtime/hosts`), which knows what they mean,
//! decides when to connect, and says what the state of each link is.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `link_thread` | the agent: a turn of the sockets, of the links, and of the host |
//! | `running` | the thread: it sleeps in its sockets, until bytes, a doorbell or a timer |
//! | `greetings` | connections whose peer has not said who it is |
//! | `resolver` | names of hosts to addresses, on a thread of its own |
//! | `rdma_memory` | the device that moves tensors past the sockets, where there is to be one |
//! | `board` | the state of the links, for others to read |

mod board;
mod greetings;
mod link_thread;
mod rdma_memory;
mod resolver;
mod running;

pub use board::{LinkBoard, LinkState, LinkView};
pub use rdma_memory::find_rdma_device;
pub(crate) use rdma_memory::{OpenMemory, SlotUse, open_memory};
pub(crate) use running::{LinkThreadPlan, RunningLinks};
