//! Disks by vhost-user-blk through real sockets, workers and shared memory, without a virtual machine: by a driver that
//! is not ours (virtio-driver), and by one of ours that does what no honest guest would. And the drain of one export.

mod drain;
mod driver;
mod guest;
mod hostile;
mod kill;
mod resize;
mod server;
mod shares;
mod strangers;
