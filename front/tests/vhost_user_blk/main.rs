//! Disks by vhost-user-blk through real sockets, workers and shared memory, without a virtual machine: by a driver that
//! nobody here wrote (virtio-driver), and by one of ours that does what no honest guest would.

mod driver;
mod guest;
mod hostile;
mod kill;
mod migrate;
mod packed;
mod resize;
mod server;
mod shares;
mod strangers;
