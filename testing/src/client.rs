//! Which calls does a client of a test do nothing about?

/// Methods of `mqfq_blk`'s trait `Client` that do nothing, by their names, in an implementation of it.
///
/// ```text
/// impl Client for Silent {
///     mqfq_testing::ignores!(start, event, completed, turn_end, room, drain);
///
///     fn is_done(&self) -> bool {
///         false
///     }
/// }
/// ```
#[macro_export]
macro_rules! ignores {
    ($($name:ident),+) => {
        $($crate::ignores!(@ $name);)+
    };
    (@ event) => {
        fn event(&mut self, _: &mut dyn ::mqfq_blk::client::Context, _: ::mqfq_blk::client::Event) {}
    };
    (@ completed) => {
        fn completed(&mut self, _: &mut dyn ::mqfq_blk::client::Context, _: ::mqfq_blk::request::Completion) {}
    };
    (@ $name:ident) => {
        fn $name(&mut self, _: &mut dyn ::mqfq_blk::client::Context) {}
    };
}
