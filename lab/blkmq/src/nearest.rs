//! Maps each worker to one of a device's queues, if the device has no mapping of its own.

use mqfq_sched::topology::CpuPlace;

/// The default of [`MultiQueue::map_queues`](crate::MultiQueue::map_queues): sockets do not share a queue while there
/// is one for each, every socket has queues by its number of workers, and those of a socket are spread evenly over its
/// cores. With fewer queues than sockets, neighbours share.
pub(super) fn nearest(workers: &[CpuPlace], queues: usize) -> Vec<u16> {
    let mut order: Vec<usize> = (0..workers.len()).collect();
    order.sort_by_key(|&worker| workers[worker]);
    let sockets: Vec<&[usize]> = order.chunk_by(|&a, &b| workers[a].socket == workers[b].socket).collect();
    let mut map = vec![0; workers.len()];
    if queues <= sockets.len() {
        for (number, socket) in sockets.iter().enumerate() {
            socket.iter().for_each(|&worker| map[worker] = (number * queues / sockets.len()) as u16);
        }
        return map;
    }
    let queues = queues.min(workers.len());
    let mut of_socket = vec![1; sockets.len()];
    for _ in sockets.len()..queues {
        // To the socket with the most workers to a queue; to the first of equal ones.
        let crowded = |&socket: &usize| (sockets[socket].len() * 1024 / of_socket[socket], std::cmp::Reverse(socket));
        let most = (0..sockets.len()).max_by_key(crowded).expect("there is a worker");
        of_socket[most] += 1;
    }
    let mut first = 0;
    for (socket, queues) in sockets.iter().zip(of_socket) {
        for (number, &worker) in socket.iter().enumerate() {
            map[worker] = (first + number * queues / socket.len()) as u16;
        }
        first += queues;
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_keeps_its_queues_together() {
        // Workers fill the first socket, and half of the second.
        let uneven: Vec<_> = (0..9).map(|worker| CpuPlace { socket: worker / 6, core: worker % 6 }).collect();
        assert_eq!(nearest(&uneven, 2), [0, 0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(nearest(&uneven, 3), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(nearest(&uneven, 1), [0; 9]);
        let eight: Vec<_> = (0..16).map(|worker| CpuPlace { socket: worker / 2, core: worker % 2 }).collect();
        assert_eq!(nearest(&eight, 3), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn every_queue_is_somebodys_on_every_machine() {
        for sockets in 1..=4u16 {
            for workers in 1..=13u16 {
                let places: Vec<_> =
                    (0..workers).map(|worker| CpuPlace { socket: worker % sockets, core: worker }).collect();
                for queues in 1..=usize::from(workers) {
                    let mut used = nearest(&places, queues);
                    used.sort_unstable();
                    used.dedup();
                    assert_eq!(used, (0..queues as u16).collect::<Vec<_>>(), "{workers} workers, {sockets} sockets");
                }
            }
        }
    }
}
