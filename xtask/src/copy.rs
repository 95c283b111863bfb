//! A copy of the tree in which something else stands: for chores that change the product on purpose.

use crate::run::{command, output, root};
use std::collections::BTreeMap;
use std::path::Path;

/// Copies what git knows or could know, as it is now, into `tree`; `changed`: other texts of some files. A file that
/// is the same already keeps its time, so that little is built again.
///
/// # Errors
/// One sentence: git does not list them, or a file cannot be written.
pub fn copy(tree: &Path, changed: &BTreeMap<String, String>) -> Result<(), String> {
    let listed = output(&mut command("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    for name in listed.split('\0').filter(|name| !name.is_empty()) {
        let to = tree.join(name);
        let bytes = changed.get(name).map(|text| text.clone().into_bytes());
        // A file deleted without `git rm` is listed but missing.
        let Some(bytes) = bytes.or_else(|| std::fs::read(root().join(name)).ok()) else { continue };
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        let folder = to.parent().expect("a file lies in a folder");
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        std::fs::write(&to, bytes).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}
