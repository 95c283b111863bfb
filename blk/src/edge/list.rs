//! Lists on the path of a request: appending where there is room, and emptying a list of empty elements.

/// The place behind the last of a list, which has room for it. [`Vec::push`] gets a value that was made before the list
/// may have to grow: one of several words is then kept on the stack and copied from there. One that is made after this
/// is written where it belongs.
pub(crate) struct VacantEntry<'a, T>(&'a mut Vec<T>);

impl<'a, T> VacantEntry<'a, T> {
    /// Place behind this list, which grows if it must.
    #[inline(always)]
    pub(crate) fn behind(list: &'a mut Vec<T>) -> VacantEntry<'a, T> {
        if list.len() == list.capacity() {
            grow(list);
        }
        VacantEntry(list)
    }

    /// Place behind this list, if it has room.
    #[inline(always)]
    pub(crate) fn within(list: &'a mut Vec<T>) -> Option<VacantEntry<'a, T>> {
        (list.len() < list.capacity()).then_some(VacantEntry(list))
    }

    /// Appends the value.
    #[inline(always)]
    pub(crate) fn fill(self, value: T) {
        let len = self.0.len();
        // SAFETY: `behind` or `within` saw to it that the capacity is more than the length, and since then the list was
        // borrowed by self alone. All before `len` are filled, and now that one is, too.
        unsafe {
            self.0.as_mut_ptr().add(len).write(value);
            self.0.set_len(len + 1);
        }
    }
}

/// Empties a list whose elements hold nothing that is to be freed any more, without a look at each of them. Memory that
/// one holds all the same is never freed.
#[inline(always)]
pub(crate) fn forget_all<T>(list: &mut Vec<T>) {
    // SAFETY: the first 0 elements of any list are filled. Forgotten elements are leaked, which is safe.
    unsafe { list.set_len(0) };
}

#[cold]
#[inline(never)]
fn grow<T>(list: &mut Vec<T>) {
    list.reserve(1);
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_there_in_order_and_dropped_once() {
        let shared = std::sync::Arc::new(());
        let mut list = Vec::new();
        for number in 0..100 {
            VacantEntry::behind(&mut list).fill((number, shared.clone()));
        }
        assert!(list.iter().map(|&(number, _)| number).eq(0..100));
        assert_eq!(std::sync::Arc::strong_count(&shared), 101);
        drop(list);
        assert_eq!(std::sync::Arc::strong_count(&shared), 1);
    }

    #[test]
    fn what_is_forgotten_is_not_dropped() {
        let shared = std::sync::Arc::new(());
        let mut list = vec![Some(shared.clone()), None];
        let taken = list[0].take();
        forget_all(&mut list);
        assert!(list.is_empty() && list.capacity() >= 2);
        drop((taken, list));
        assert_eq!(std::sync::Arc::strong_count(&shared), 1, "what was taken out before is dropped");
    }

    #[test]
    fn a_place_that_is_not_filled_is_none() {
        let mut list = vec![String::from("first")];
        let _ = VacantEntry::behind(&mut list);
        assert_eq!(list, ["first"]);
    }
}
