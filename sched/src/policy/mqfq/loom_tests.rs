//! Model checks of the composed protocol.
