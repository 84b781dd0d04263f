//! A ring that can't be entered, and requests whose makers go.

use super::*;

/// Field report 83.
#[test]
fn a_ring_that_cannot_be_entered_for_a_while_loses_nothing() {
    let _alive = watchdog();
    let Some(context) = with_ring() else { return };
    let file = Rc::new(File::new(image(200)).expect("a file").with_engine(Engine::Ring));
    for errno in [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME] {
        for times in [1, 1000] {
            // More than the queue has room for.
            plan(Site::Enter, iter::repeat_n(Errno(errno), times));
            assert!(read_blocks(&context, &file, 200).iter().all(Option::is_none));
            let deadline = Instant::now() + Duration::from_millis(2);
            plan(Site::Enter, iter::repeat_n(Errno(errno), times));
            context.block_on(|| aio::sleep_until(deadline));
            assert!(Instant::now() >= deadline);
            plan(Site::Enter, []);
        }
    }
}

/// Field report 80: the entry is in the queue when the call fails; the kernel gets it later, when nobody waits any more.
#[test]
fn a_request_that_is_cancelled_while_the_ring_cannot_be_entered_lets_go_of_its_buffer() {
    let _alive = watchdog();
    let Some(context) = with_ring() else { return };
    let (file, mut writer) = pipe();
    let memory = Rc::new(RefCell::new([0xAA_u8; 64]));
    for errno in [libc::EINTR, libc::EAGAIN] {
        let (own, shared) = (file.clone(), memory.clone());
        let read = move || own.read_at(&mut shared.borrow_mut()[..], 0).map(drop);
        let reading = context.spawn_local(read).expect("a stack");
        plan(Site::Enter, [Errno(errno); 10]);
        turn(&context);
        reading.cancel();
        assert!(reading.join().map(drop).expect_err("cancelled").is::<Cancelled>());
        plan(Site::Enter, []);
        io::Write::write_all(&mut writer, b"late").expect("room");
        turn(&context);
        assert_eq!(*memory.borrow(), [0xAA; 64]);
        io::Read::read_exact(&mut file.get_ref(), &mut [0; 4]).expect("it is still there");
    }
}

/// Field report 80: an error that means more than a shortage comes out of the turn, and the request is under way all the
/// same; so it is later cancelled, or done.
#[test]
fn a_request_outlives_an_error_of_the_ring() {
    let _alive = watchdog();
    let Some(context) = with_ring() else { return };
    let (file, mut writer) = pipe();
    let memory = Rc::new(RefCell::new([0xAA_u8; 64]));
    let fails = || {
        plan(Site::Enter, [Errno(libc::ENXIO)]);
        let failed = panic::catch_unwind(AssertUnwindSafe(|| context.poll(false)));
        let message = *failed.expect_err("it is told").downcast::<String>().expect("a message");
        assert!(message.contains("io_uring failed"), "{message}");
        assert_eq!(left(Site::Enter), 0);
    };
    let mut is_late = || {
        io::Write::write_all(&mut writer, b"late").expect("room");
        turn(&context);
        assert_eq!(*memory.borrow(), [0xAA; 64]);
        io::Read::read_exact(&mut file.get_ref(), &mut [0; 4]).expect("it is still there");
    };
    let read = || {
        let (own, shared) = (file.clone(), memory.clone());
        move || own.read_at(&mut shared.borrow_mut()[..4], 0)
    };

    let reading = context.spawn_local(read()).expect("a stack");
    context.poll(false);
    fails();
    reading.cancel();
    assert!(reading.join().map(drop).expect_err("cancelled").is::<Cancelled>());
    is_late();

    // By somebody who waits for that, while the ring goes on to refuse.
    let read_and_drop = read();
    let reading = Coroutine::new(move || drop(read_and_drop())).expect("a stack");
    let home = enter_home(context.home());
    reading.enter();
    fails();
    plan(Site::Enter, [Errno(libc::ENXIO); 5]);
    drop(reading);
    drop(home);
    assert_eq!(left(Site::Enter), 0);
    is_late();

    let reading = context.spawn_local(read()).expect("a stack");
    context.poll(false);
    fails();
    io::Write::write_all(&mut writer, b"data").expect("room");
    assert_eq!(reading.join().expect("no panic").expect("a read"), 4);
    assert_eq!(memory.borrow()[..5], *b"data\xAA");
}

/// Whoever is cancelled while nobody can let go of its buffer is suspended for as long, and the others go on. If its context ends
/// meanwhile, that waits.
#[test]
fn a_cancelled_coroutine_waits_for_its_request_and_the_others_go_on() {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        for (in_group, is_context_dropped) in [(false, false), (false, true), (true, false), (true, true)] {
            let Ok(context) = AioContext::builder().monitor(kind).build() else { continue };
            let file = image(1);
            let fd = file.as_raw_fd();
            let file = Rc::new(File::new(file).expect("a file").with_engine(Engine::Workers));
            let memory = Rc::new(RefCell::new(vec![0; BLOCK]));
            // For as long as something is planned.
            plan(Site::Request(fd), [Hold, Fault::None, Fault::None]);
            let (own, shared) = (file.clone(), memory.clone());
            let read = move || match in_group {
                false => drop(own.read_at(&mut shared.borrow_mut()[..], 0)),
                true => {
                    let (first, second) = (&mut shared.borrow_mut()[..], &mut [0; 1]);
                    group(|group| {
                        group.read_at(&own, first, 0);
                        group.read_at(&own, second, 0);
                        group.wait_all();
                    });
                }
            };
            let reading = context.spawn_local(read).expect("a stack");
            turn(&context);
            while !is_held(fd) {
                thread::yield_now();
            }
            for _ in 0..3 {
                reading.cancel();
                turn(&context);
                assert!(!reading.is_finished() && memory.try_borrow().is_err(), "its buffer is lent");
            }
            context.block_on(|| aio::sleep(Duration::from_micros(100)));
            assert!(!reading.is_finished());
            let release = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                plan(Site::Request(fd), []);
            });
            if is_context_dropped {
                drop(context);
                assert!(reading.is_finished());
            }
            assert!(reading.join().map(drop).expect_err("cancelled").is::<Cancelled>());
            assert!(holds(&memory.borrow(), 0), "the read was carried out");
            assert_eq!(Rc::strong_count(&file), 1);
            release.join().expect("no panic");
        }
    }
}

/// A context with a ring, if it can be had.
fn with_ring() -> Option<AioContext> {
    AioContext::builder().monitor(MonitorKind::IoUring).build().inspect_err(|error| println!("SKIPPED: {error}")).ok()
}

/// A pipe whose reading end is for the ring, and its writing end.
fn pipe() -> (Rc<File<io::PipeReader>>, io::PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (Rc::new(File::new(reader).expect("a file").with_engine(Engine::Ring)), writer)
}
