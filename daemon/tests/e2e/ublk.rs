//! Block devices of the kernel: where there is no driver, that is said in one sentence. Where there is one, see the
//! guest's tests.

use crate::server::{Folder, mqfq};
use std::path::Path;

const CONFIG: &str = "[device.d]\nkind = \"memory\"\nsize = \"2MiB\"\n[tenant.alice]\n\
    [export.alice-root]\ndevice = \"d\"\ntenant = \"alice\"\nublk = 0\nrecovery = \"reissue\"\n";

#[test]
fn without_the_driver_a_block_device_is_refused_in_one_sentence() {
    let folder = Folder::new();
    let path = folder.join("config.toml");
    std::fs::write(&path, CONFIG).unwrap();
    if Path::new("/dev/ublk-control").exists() {
        eprintln!("left out: this machine has the driver, and its devices may be in use");
        return;
    }
    for command in ["check", "serve"] {
        let refused = mqfq(&[command, path.to_str().unwrap()]);
        assert_eq!(
            String::from_utf8_lossy(&refused.stderr),
            "mqfq: cannot serve ublk 0 (recovery reissue): /dev/ublk-control is missing: this kernel has no ublk \
             driver, or `modprobe ublk_drv` was not run\n"
        );
        assert_eq!(refused.status.code(), Some(1));
    }
}
