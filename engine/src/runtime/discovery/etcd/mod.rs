//! A source: an etcd. Each host has a key under a lease, `PREFIX ROLE/NAME`, whose value is where
//! others reach it. A host lists the keys, and watches them from the list's revision on.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `messages` | the messages of etcd's API that are needed |
//! | `client` | calls to one member, each with a bound on its time |
//! | `mirror` | from lists and events, the hosts that have registered |
//! | `session` | registering, keeping alive and watching, over and over |

mod client;
mod messages;
mod mirror;
mod session;

pub(super) use client::{EtcdAccess, EtcdClient, EtcdFault};
pub(super) use mirror::Mirror;
pub(super) use session::EtcdSource;
