//! What Linux AIO takes in part, puts off or refuses, and what becomes of it.

use super::*;

/// Field report 72.
#[test]
fn what_a_turn_submits_goes_in_one_call_and_the_rest_of_what_was_taken_in_part_follows() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            let read = || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
            assert_eq!(submits(context, read), 1);
            plan(Site::Submit, [Only(3)]);
            assert_eq!(submits(context, read), 2);
            plan(Site::Submit, [Only(1), Only(2), Only(3)]);
            assert_eq!(submits(context, read), 4);
            assert_eq!(left(Site::Submit), 0);
        }
    });
}

/// Field report 72.
#[test]
fn what_is_put_off_follows_when_something_is_done() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            let read = || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
            plan(Site::Submit, [Only(3), Errno(libc::EAGAIN)]);
            assert_eq!(submits(context, read), 3);
            plan(Site::Submit, [Only(5), Errno(libc::EAGAIN), Errno(libc::EAGAIN), Only(0)]);
            read();
            assert_eq!(left(Site::Submit), 0);
        }
    });
}

#[test]
fn what_is_put_off_is_tried_again_no_more_often_than_something_is_done() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            plan(Site::Submit, iter::once(Only(5)).chain(iter::repeat_n(Errno(libc::EAGAIN), 100)));
            let readers: Vec<_> = (0..10)
                .map(|number| {
                    let file = file.clone();
                    let read = move || file.read_at(&mut AlignedBuf::new(BLOCK, BLOCK), number * BLOCK as u64);
                    context.spawn_local(read).expect("a stack")
                })
                .collect();
            turn(context);
            // Once for each of the five at most, and once before a pause.
            assert!(left(Site::Submit) >= 100 - 1 - 5 - 1, "{}", left(Site::Submit));
            plan(Site::Submit, []);
            readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap().expect("a read"), BLOCK));
        }
    });
}

/// Field report 72.
#[test]
fn what_is_put_off_while_the_kernel_has_nothing_is_tried_again_after_pauses() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            plan(Site::Submit, [Errno(libc::EAGAIN); 6]);
            let before = context.stats();
            let read = || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
            assert_eq!(submits(context, read), 7);
            assert!(context.stats().waits - before.waits < 40, "it sleeps meanwhile: {:?}", context.stats());
            // Others that keep the loop busy don't make it try more often.
            plan(Site::Submit, [Errno(libc::EAGAIN); 6]);
            let busy = context.spawn_local(|| (0..1000).for_each(|_| yield_now())).expect("a stack");
            assert_eq!(submits(context, read), 7);
            busy.join().expect("no panic");
        }
    });
}

#[test]
fn a_kernel_that_takes_nothing_for_long_is_an_error_to_all_and_may_recover() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(10));
        plan(Site::Submit, iter::repeat_n(Errno(libc::EAGAIN), 10_000));
        let tried = submits(context, || {
            assert_eq!(read_blocks(context, &file, 10), [Some(libc::ENOMEM); 10]);
        });
        assert!(tried < 1000, "{tried} times");
        plan(Site::Submit, []);
        assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
    });
}

/// Field report 72.
#[test]
fn an_interrupted_submission_is_made_again() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(10));
        plan(Site::Submit, [Errno(libc::EINTR); 2000]);
        let tried = submits(context, || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none)));
        assert_eq!(tried, 2001);
    });
}

/// Field reports 72 and 79.
#[test]
fn a_request_that_is_refused_fails_alone() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            plan(Site::Submit, [Only(2), Errno(libc::EINVAL), Errno(libc::EBADF), Only(4), Errno(libc::EFAULT)]);
            let mut wanted = [None; 10];
            wanted[2] = Some(libc::EINVAL);
            wanted[3] = Some(libc::EBADF);
            wanted[8] = Some(libc::EFAULT);
            assert_eq!(read_blocks(context, &file, 10), wanted);
        }
    });
}

/// Field report 79: and whoever has the results of the others meanwhile drops the context.
#[test]
fn a_context_may_be_dropped_right_after_an_error() {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        let Ok(context) = AioContext::builder().monitor(kind).build() else { continue };
        if context.prepare_linux_aio().is_err() {
            return println!("SKIPPED: no Linux AIO");
        }
        let Some(file) = direct_image(8).map(aio_file) else { return };
        let (failed, dropped) = (Rc::new(Cell::new(0)), Rc::new(()));
        plan(Site::Submit, [Errno(libc::EBADF)]);
        for number in 0..8 {
            let (failed, dropped) = (failed.clone(), dropped.clone());
            let then = move |result: io::Result<usize>, _: AlignedBuf| {
                let _dropped = dropped;
                failed.set(failed.get() + u32::from(result.is_err()));
            };
            let buffer = AlignedBuf::new(BLOCK, BLOCK);
            read_then(&context, file.clone(), buffer, number * BLOCK as u64, then).expect("it goes on");
        }
        while failed.get() == 0 {
            context.poll(true);
        }
        drop(context);
        assert_eq!((failed.get(), Rc::strong_count(&dropped), Rc::strong_count(&file)), (1, 1, 1));
    }
}

/// Field report 74.
#[test]
fn all_completions_are_taken_at_once_and_the_notifier_is_cleared_once() {
    each_with_linux_aio(|context| {
        const READS: usize = 300;
        let file = aio_file(image(READS));
        let done = Rc::new(Cell::new(0));
        for number in 0..READS {
            let done = done.clone();
            let then = move |result: io::Result<usize>, buffer: Vec<u8>| {
                assert_eq!(result.expect("a read"), BLOCK);
                assert!(holds(&buffer, number * BLOCK));
                done.set(done.get() + 1);
            };
            let offset = (number * BLOCK) as u64;
            read_then(context, file.clone(), vec![0; BLOCK], offset, then).expect("it goes on");
        }
        let before = context.stats();
        // The page cache has it: they are carried out within the submission.
        assert!(context.poll(true));
        assert_eq!(done.get(), READS);
        while context.poll(false) {}
        context.poll(false);
        let after = context.stats();
        assert_eq!(after.linux_aio_submits - before.linux_aio_submits, 1);
        assert!(after.notifier_reads - before.notifier_reads <= 1, "{after:?}");
    });
}

#[test]
fn a_turn_that_waits_for_a_completion_brings_it() {
    each_with_linux_aio(|context| {
        let Some(file) = direct_image(8).map(aio_file) else { return };
        let mut in_vain = 0;
        for number in 0..8 {
            let done = Rc::new(Cell::new(false));
            let is_done = done.clone();
            let then = move |result: io::Result<usize>, _: AlignedBuf| {
                assert_eq!(result.expect("a read"), BLOCK);
                is_done.set(true);
            };
            read_then(context, file.clone(), AlignedBuf::new(BLOCK, BLOCK), number * BLOCK as u64, then)
                .expect("it goes on");
            in_vain += iter::repeat_with(|| context.poll(true)).take_while(|_| !done.get()).count();
        }
        // Seldom one is: the completion before was seen earlier than its signal.
        assert!(in_vain < 8, "{in_vain} turns");
    });
}

/// Field report 72: the kernel has room for some four hundred.
#[test]
fn more_requests_than_the_kernel_takes_all_have_their_turn() {
    each_with_linux_aio(|context| {
        for file in images(1500).map(aio_file) {
            assert!(read_blocks(context, &file, 1500).iter().all(Option::is_none));
        }
    });
}

#[test]
fn a_request_that_the_kernel_has_not_got_is_taken_back() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(2));
        // For as long as the pauses between attempts are shorter than a busy machine's.
        let busy = || plan(Site::Submit, iter::repeat_n(Errno(libc::EAGAIN), 1000));
        let calm = || plan(Site::Submit, []);
        busy();
        let readers = [0, 1].map(|number| {
            let file = file.clone();
            let read = move || file.read_exact_at(&mut [0; BLOCK], number * BLOCK as u64);
            context.spawn_local(read).expect("a stack")
        });
        context.poll(false);
        context.poll(false);
        let [first, second] = readers;
        first.cancel();
        assert!(first.join().map(drop).expect_err("cancelled").is::<Cancelled>());
        calm();
        second.join().expect("no panic").expect("a read");
        // All are taken back while a pause is on: the next isn't put off.
        busy();
        let other = file.clone();
        let reader = context.spawn_local(move || other.read_at(&mut [0; BLOCK], 0)).expect("a stack");
        context.poll(false);
        context.poll(false);
        reader.cancel();
        assert!(reader.join().map(drop).expect_err("cancelled").is::<Cancelled>());
        calm();
        let before = context.stats().waits;
        context.block_on(|| aio::sleep(Duration::from_millis(20)));
        assert!(context.stats().waits - before < 10, "there is nothing left to try");
        assert!(read_blocks(context, &file, 2).iter().all(Option::is_none));
    });
}

#[test]
fn a_context_that_ends_cancels_what_the_kernel_has_not_got() {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        let Ok(context) = AioContext::builder().monitor(kind).build() else { continue };
        if context.prepare_linux_aio().is_err() {
            return println!("SKIPPED: no Linux AIO");
        }
        let Some(file) = direct_image(10).map(aio_file) else { return };
        let results = Rc::new(RefCell::new(Vec::new()));
        plan(Site::Submit, iter::once(Only(5)).chain(iter::repeat_n(Errno(libc::EAGAIN), 1000)));
        let driven: Vec<_> = (0..10)
            .map(|number| {
                let (file, results) = (file.clone(), results.clone());
                let read = move || {
                    let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
                    let read = file.read_at(&mut buffer, (number * BLOCK) as u64);
                    results.borrow_mut().push(read.map_err(|error| error.raw_os_error()));
                };
                Coroutine::new(read).expect("a stack")
            })
            .collect();
        let home = enter_home(context.home());
        driven.iter().for_each(Coroutine::enter);
        drop(home);
        // They are handed over, as far as the kernel takes them.
        context.poll(false);
        drop(context);
        driven.iter().filter(|coroutine| !coroutine.is_finished()).for_each(Coroutine::enter);
        plan(Site::Submit, []);
        let results = results.borrow();
        let cancelled = results.iter().filter(|&&result| result == Err(Some(libc::ECANCELED))).count();
        let read = results.iter().filter(|&&result| result == Ok(BLOCK)).count();
        assert_eq!((read, cancelled), (5, 5), "{results:?}");
    }
}

// ---- setup ----------------------------------------------------------------------------------------------------------
