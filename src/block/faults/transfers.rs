//! Transfers that are short, put off or interrupted.

use super::*;

/// Field report 84.
#[test]
fn results_that_put_off_or_interrupt_are_no_errors_unless_there_is_no_end_of_them() {
    each(|context| {
        for engine in engines(context) {
            let file = image(2);
            let site = Site::Request(file.as_raw_fd());
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            context.block_on(|| {
                let mut buffer = vec![0; BLOCK];
                plan(site, [libc::EAGAIN, libc::EINTR, libc::EAGAIN, libc::EAGAIN, libc::EINTR].map(Errno));
                file.read_exact_at(&mut buffer, 0).expect("a read");
                assert!(holds(&buffer, 0) && left(site) == 0, "{engine}");
                plan(site, [libc::EINTR, libc::EAGAIN].map(Errno));
                file.write_all_at(&buffer, BLOCK as u64).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
                plan(site, [libc::EINTR, libc::EAGAIN].map(Errno));
                file.flush().expect("a flush");
                assert_eq!(left(site), 0, "{engine}");
                for errno in [libc::EAGAIN, libc::EINTR] {
                    plan(site, [Errno(errno); 1000]);
                    let error = file.read_exact_at(&mut buffer, 0).expect_err("always");
                    assert_eq!(error.raw_os_error(), Some(errno), "{engine}");
                    assert!(left(site) > 800, "{engine}: it gives up");
                }
                let flushed = Rc::new(Cell::new(false));
                let (place, context) = (flushed.clone(), aio::current().expect("a coroutine of it"));
                plan(site, [libc::EINTR, libc::EAGAIN].map(Errno));
                flush_then(&context, file.clone(), move |result| place.set(result.is_ok())).expect("it goes on");
                while !flushed.get() {
                    yield_now();
                }
                assert_eq!(left(site), 0, "{engine}");
                plan(site, [Errno(libc::EIO)]);
                let error = file.read_exact_at(&mut buffer, 0).expect_err("it fails");
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{engine}");
            });
        }
    });
}

/// What is left of a transfer after each call of it.
const CUTS: [Fault; 4] = [Only(1), Only(BLOCK / 2), Only(BLOCK - 1), Only(3)];

/// Field report 85.
#[test]
fn short_transfers_are_finished() {
    each(|context| {
        for engine in engines(context) {
            let file = image(3);
            let site = Site::Request(file.as_raw_fd());
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            context.block_on(|| {
                let mut buffer = vec![0; 3 * BLOCK];
                plan(site, CUTS);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 3 * BLOCK);
                assert!(holds(&buffer, 0) && left(site) == 0, "{engine}");
                // Across the end of the file, which is where it is.
                plan(site, CUTS);
                assert_eq!(file.read_at(&mut buffer, BLOCK as u64).expect("a read"), 2 * BLOCK);
                assert!(holds(&buffer[..2 * BLOCK], BLOCK) && left(site) == 0, "{engine}");
                // Cut within the second vector, and then between two.
                let mut parts = [vec![0; 100], vec![0; 2000], vec![0; 0], vec![0; 5000]];
                let mut slices: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
                plan(site, [Only(101), Only(1999), Only(1), Only(4000)]);
                assert_eq!(file.read_vectored_at(&mut slices, 5).expect("a read"), 7100);
                assert!(holds(&parts.concat(), 5) && left(site) == 0, "{engine}");
                // The same again, backwards: a file that is the old one elsewhere.
                let data: Vec<_> = (9..9 + 7100).map(byte_at).collect();
                plan(site, CUTS);
                file.write_all_at(&data, 9 + 3 * BLOCK as u64).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
                let mut slices = [&data[..100], &data[100..2100], &[], &data[2100..]].map(IoSlice::new);
                plan(site, [Only(101), Only(1999), Only(1), Only(4000)]);
                file.write_all_vectored_at(&mut slices, 9 + 6 * BLOCK as u64).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
                for at in [3, 6] {
                    let mut back = vec![0; 7100];
                    file.read_exact_at(&mut back, 9 + (at * BLOCK) as u64).expect("a read");
                    assert!(back == data, "{engine}");
                }
                // Nothing moved: the end, of a read and of the caller's patience with a write.
                plan(site, [Only(100), Only(0)]);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 100);
                plan(site, [Only(100), Only(0)]);
                let error = file.write_all_at(&data, 0).expect_err("nothing was written");
                assert_eq!(error.kind(), ErrorKind::WriteZero);
            });
        }
    });
}

/// Field report 78.
#[test]
fn short_direct_transfers_go_on_where_they_are_aligned() {
    each(|context| {
        for engine in engines(context) {
            let Some(file) = direct_image(4) else { return };
            let site = Site::Request(file.as_raw_fd());
            let file = File::new(file).expect("a file").with_engine(engine);
            context.block_on(|| {
                let mut buffer = AlignedBuf::new(4 * BLOCK, BLOCK);
                plan(site, [Only(BLOCK), Only(2 * BLOCK)]);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 4 * BLOCK);
                assert!(holds(&buffer, 0) && left(site) == 0, "{engine}");
                plan(site, [Only(BLOCK), Errno(libc::EAGAIN)]);
                file.write_all_at(&buffer[..2 * BLOCK], 0).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
            });
        }
    });
}

/// Groups and requests without coroutines obey the same rules.
#[test]
fn short_and_interrupted_transfers_of_groups_and_callbacks_are_finished() {
    each(|context| {
        for engine in engines(context) {
            let file = image(8);
            let site = Site::Request(file.as_raw_fd());
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            let faults = [Only(1), Errno(libc::EINTR), Only(1000), Errno(libc::EAGAIN), Only(3), Only(3), Only(3)];
            plan(site, faults);
            let mut buffers = vec![vec![0; BLOCK]; 8];
            context.block_on(|| {
                group(|group| {
                    for (buffer, block) in buffers.iter_mut().zip(0..) {
                        group.read_at(&file, buffer, block * BLOCK as u64);
                    }
                    group.wait_all();
                    iter::from_fn(|| group.take()).for_each(|(_, read)| assert_eq!(read.expect("a read"), BLOCK));
                });
            });
            assert!(holds(&buffers.concat(), 0) && left(site) == 0, "{engine}");
            plan(site, faults);
            let done = Rc::new(Cell::new(0));
            for (block, data) in buffers.into_iter().enumerate() {
                let (count, other) = (done.clone(), file.clone());
                let written = move |result: io::Result<()>, data: Vec<u8>| {
                    result.expect("a write");
                    let context = aio::current().expect("in a callback");
                    let read = move |result: io::Result<usize>, data: Vec<u8>| {
                        assert_eq!(result.expect("a read"), BLOCK);
                        assert!(holds(&data, block * BLOCK));
                        count.set(count.get() + 1);
                    };
                    let empty = vec![0; data.len()];
                    read_then(&context, other, empty, (block * BLOCK) as u64, read).expect("it goes on");
                };
                write_all_then(context, file.clone(), data, (block * BLOCK) as u64, written).expect("it goes on");
            }
            context.run_until(|| done.get() == 8);
            assert_eq!(left(site), 0, "{engine}");
        }
    });
}

// ---- the ring's own call --------------------------------------------------------------------------------------------
