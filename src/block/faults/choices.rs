//! Which engine carries out a request where one can't.

use super::*;

/// Field report 77.
#[test]
fn an_exhausted_limit_is_named_and_workers_take_over() {
    let cases = [
        (libc::EAGAIN, "fs.aio-max-nr"),
        (libc::ENOSYS, "lacks it"),
        (libc::EPERM, "seccomp"),
        (libc::ENOMEM, "memory"),
        (libc::EINVAL, "refuses"),
    ];
    for (errno, says) in cases {
        each(|context| {
            plan(Site::Setup, [Errno(errno)]);
            for file in images(4).map(aio_file) {
                for operation in [Operation::Read, Operation::Write, Operation::Other] {
                    let choice = context.block_on(|| file.engine(operation));
                    assert_eq!(choice.engine(), Engine::Workers);
                    assert!(choice.reason().contains(says), "{choice}");
                }
                assert!(read_blocks(context, &file, 4).iter().all(Option::is_none));
                context.block_on(|| file.flush()).expect("a flush");
            }
            assert_eq!(left(Site::Setup), 0);
            assert_eq!(context.stats().linux_aio_submits, 0);
            // One that wasn't asked for.
            let Some(direct) = direct_image(1) else { return };
            let direct = File::new(direct).expect("a file");
            let choice = context.block_on(|| direct.engine(Operation::Read));
            match context.monitor().kind() {
                MonitorKind::IoUring => assert_eq!(choice.engine(), Engine::Ring),
                _ => assert!(choice.engine() == Engine::Workers && choice.reason().contains(says), "{choice}"),
            }
        });
    }
}

/// Field report 77.
#[test]
fn nothing_is_set_up_before_it_is_used() {
    plan(Site::Setup, [Errno(libc::EAGAIN)]);
    each(|context| {
        let file = Rc::new(File::new(image(4)).expect("a file"));
        assert!(read_blocks(context, &file, 4).iter().all(Option::is_none));
        context.block_on(|| file.flush()).expect("a flush");
        for engine in [Engine::Inline, Engine::Workers] {
            let Some(file) = direct_image(4) else { return };
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            assert!(read_blocks(context, &file, 4).iter().all(Option::is_none));
        }
    });
    assert_eq!(left(Site::Setup), 1);
}

#[test]
fn what_makes_a_file_longer_is_for_workers_unless_it_was_asked_for() {
    each_with_linux_aio(|context| {
        if context.monitor().kind() == MonitorKind::IoUring {
            return;
        }
        let Some(grows) = direct_image(1) else { return };
        let grows = File::new(grows).expect("a file");
        let block = AlignedBuf::new(BLOCK, BLOCK);
        let write_at = |number: usize| {
            submits(context, || {
                context.block_on(|| {
                    assert_eq!(grows.engine(Operation::Write).engine(), Engine::LinuxAio);
                    let slices = &mut [IoSlice::new(&block)];
                    grows.write_all_vectored_at(slices, (number * BLOCK) as u64).expect("a write");
                    grows.write_all_at(&block, (number * BLOCK) as u64).expect("a write");
                });
            })
        };
        assert_eq!([0, 1, 0, 1, 3, 2].map(write_at), [2, 1, 2, 2, 1, 2], "the second time it is long enough");
        let Some(grows) = direct_image(1).map(aio_file) else { return };
        let write = || context.block_on(|| grows.write_all_at(&block, BLOCK as u64).expect("a write"));
        assert_eq!(submits(context, write), 1);
    });
}

#[test]
fn a_kernel_that_does_not_flush_by_linux_aio_has_workers_flush() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(1));
        context.block_on(|| {
            assert_eq!(file.engine(Operation::Other).engine(), Engine::LinuxAio);
            plan(Site::Submit, [Errno(libc::EINVAL)]);
            file.flush().expect("a flush");
            assert_eq!(file.engine(Operation::Other).engine(), Engine::Workers);
            file.flush_all().expect("a flush");
            assert_eq!(file.engine(Operation::Read).engine(), Engine::LinuxAio);
        });
        let others = aio_file(image(1));
        let flush = || context.block_on(|| others.flush().and(others.flush_all()).expect("a flush"));
        assert_eq!(submits(context, flush), 2);
        // And without a coroutine.
        let third = aio_file(image(1));
        let flushed = Rc::new(Cell::new(false));
        let place = flushed.clone();
        plan(Site::Submit, [Errno(libc::EINVAL)]);
        flush_then(context, third, move |result| place.set(result.is_ok())).expect("it goes on");
        context.run_until(|| flushed.get());
        assert_eq!(left(Site::Submit), 0);
        // What it has no requests for.
        let allocate = || context.block_on(|| others.allocate(0, 100).expect("space"));
        assert_eq!(submits(context, allocate), 0);
    });
}

// ---- results --------------------------------------------------------------------------------------------------------
