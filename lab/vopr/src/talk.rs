//! A vhost-user front-end's messages: each is said when the one before it was answered, if that has an answer.
//!
//! A wire brings descriptors with whichever bytes come next (`net.rs`), so a message with descriptors has to follow one
//! that is answered.

use crate::net::SharedPipe;
use mqfq_front::vhost_user_blk::wire::{FLAG_NEED_REPLY, HEADER_BYTES, Header, Message, message};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Answer that a message expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// A number, 0 if it was done: the front-end asks for that.
    Ack,
    /// The message always has an answer.
    Own,
}

struct Saying {
    message: Message,
    payload: Vec<u8>,
    files: Vec<OwnedFd>,
    answer: Answer,
}

/// Messages to come, and the one whose answer is awaited.
#[derive(Default)]
pub struct Talk {
    pipe: Option<SharedPipe>,
    to_come: VecDeque<Saying>,
    awaited: Option<(Message, Answer)>,
    received: Vec<u8>,
}

/// The bytes of a message's numbers.
pub fn payload(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Talk {
    /// A conversation on `pipe`, in which nothing is to come yet.
    pub fn new(pipe: SharedPipe) -> Talk {
        Talk { pipe: Some(pipe), ..Talk::default() }
    }

    /// There is no connection.
    pub fn is_away(&self) -> bool {
        self.pipe.is_none()
    }

    /// The front-end closes the connection.
    pub fn leave(&mut self) {
        self.pipe.iter().for_each(|pipe| pipe.borrow_mut().is_left = true);
        *self = Talk::default();
    }

    /// All messages were said and answered.
    pub fn is_over(&self) -> bool {
        self.to_come.is_empty() && self.awaited.is_none()
    }

    /// One more message, with copies of `files`.
    pub fn say(&mut self, message: Message, payload: Vec<u8>, files: &[&OwnedFd], answer: Answer) {
        let files = files.iter().map(|file| file.try_clone().expect("a descriptor")).collect();
        self.to_come.push_back(Saying { message, payload, files, answer });
    }

    /// Calls `hear` with each answer that has come, and says the next message. True: something happened. `None`: there
    /// is no connection, or the server has ended it.
    ///
    /// # Panics
    /// If an answer belongs to another message.
    pub fn turn(&mut self, mut hear: impl FnMut(Message, &[u8], &[OwnedFd])) -> Option<bool> {
        let pipe = self.pipe.clone()?;
        let (bytes, files, is_shut) = {
            let mut pipe = pipe.borrow_mut();
            let files = std::mem::take(&mut pipe.descriptors_to_client);
            (std::mem::take(&mut pipe.to_client), files, pipe.is_shut)
        };
        let mut has_moved = !bytes.is_empty();
        self.received.extend(bytes);
        if is_shut {
            *self = Talk::default();
            return None;
        }
        loop {
            match (self.answered(), self.awaited) {
                (Some((message, payload)), _) => hear(message, &payload, &files),
                (None, None) if !self.to_come.is_empty() => self.speak(&pipe),
                _ => return Some(has_moved),
            }
            has_moved = true;
        }
    }

    fn answered(&mut self) -> Option<(Message, Vec<u8>)> {
        let (message, answer) = self.awaited?;
        let header = Header::read(&self.received)?;
        let length = HEADER_BYTES + header.size as usize;
        if self.received.len() < length {
            return None;
        }
        let payload: Vec<u8> = self.received.drain(..length).skip(HEADER_BYTES).collect();
        assert_eq!(header.request, message as u32, "an answer to another message than {message:?} ({answer:?})");
        self.awaited = None;
        Some((message, payload))
    }

    fn speak(&mut self, pipe: &SharedPipe) {
        let Some(Saying { message: number, payload, files, answer }) = self.to_come.pop_front() else { return };
        let flags = if answer == Answer::Ack { FLAG_NEED_REPLY } else { 0 };
        let mut pipe = pipe.borrow_mut();
        pipe.to_server.extend(message(number as u32, flags, &payload));
        pipe.descriptors.extend(files);
        self.awaited = (answer != Answer::Nothing).then_some((number, answer));
    }
}
