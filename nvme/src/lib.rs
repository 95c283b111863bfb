//! nvme
