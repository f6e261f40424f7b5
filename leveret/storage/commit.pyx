"""Worker threads that wait for the disk, so that the event loop does not.

A log has one flush at a time, of everything it has written so far; what is appended meanwhile is
covered by its next one: that is the group commit. Flushes of several logs run in parallel, on a few
threads.

Compiled because a flush of open files is all that most confirms wait for: a thread takes it, calls
fdatasync, and reports it without the interpreter's lock, for which it would wait as long as the loop
is at work. Each thread sleeps on a semaphore of its own, and whichever began to sleep last is woken
first, so that none wakes in vain and few do at all. Other work runs as Python.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from leveret.ports.counters cimport Histogram

import os
import threading
from functools import partial

from leveret.ports.callbacks import call_each

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t*, int shared, unsigned int value)
    int sem_destroy(sem_t*)
    int sem_post(sem_t*)
    int sem_wait(sem_t*)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_NONBLOCK
    int EFD_CLOEXEC
    int eventfd(unsigned int value, int flags)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)
    ssize_t read(int descriptor, void* data, size_t size)
    ssize_t write(int descriptor, const void* data, size_t size)


cdef struct Job:
    # A flush of `count` descriptors, or `work` if that is not NULL. What is below has its result.
    Job* next
    PyObject* work
    PyObject* done
    bint is_flush
    int count
    int* descriptors
    int failure             # errno of the flush
    int64_t took_us
    PyObject* error         # that `work` has raised


cdef struct Thread:
    sem_t wakes             # posted once there is a job, or the end
    Job* job
    Thread* next            # that began to sleep before this one
    int64_t flushes_since_us    # 0 while it flushes nothing; below the mutex


cdef int64_t monotonic_us() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000 + now.tv_nsec // 1000


# Microseconds, from a disk with a cache of its own to one that is about to fail.
FLUSH_BOUNDS_US = (
    *(100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000),
    *(100_000, 200_000, 500_000, 1_000_000, 5_000_000),
)
cdef enum:
    _QUICK_US = 250     # a flush of less costs the event loop about as much as waking a thread for it
    _SLOW_AT_FIRST_US = 2_000       # until some flushes have shown what the disk can do
    _AVERAGED = 8


@cython.final
cdef class FlushFigures:
    """Flush statistics of a node: durations, batches and failures."""

    def __init__(self):
        self.durations = Histogram(FLUSH_BOUNDS_US)
        self._typical_us = _SLOW_AT_FIRST_US

    def ended(self, int64_t took_us, uint64_t batches, *, bint failed):
        """Count a flush of so many batches that has ended."""
        self._ended(took_us, batches, failed)

    cpdef bint are_quick(self) noexcept:
        """Whether a flush is likely to be over sooner than a thread would have begun it."""
        return self._typical_us < _QUICK_US

    cdef void _ended(self, int64_t took_us, uint64_t batches, bint failed) noexcept:
        self.durations.add(took_us, 1)
        self.batches += batches
        self.failures += failed
        self._typical_us += (took_us - self._typical_us) // _AVERAGED


cdef void flush(Job* job) noexcept nogil:
    """Flush files in order, up to the first that cannot be."""
    cdef int64_t began_us = monotonic_us()
    cdef int i
    for i in range(job.count):
        if fdatasync(job.descriptors[i]) != 0:
            job.failure = errno
            break
    job.took_us = monotonic_us() - began_us


@cython.final
cdef class Committer:
    """Runs flushes and other work in threads, and reports the results on the loop.

    An exception of `done` goes to the loop's exception handler, and the other results are reported
    all the same.
    """

    cdef object loop
    cdef list threads
    cdef Thread* slots              # of the threads
    cdef int descriptor             # eventfd that is readable while something is finished
    # Below the mutex:
    cdef pthread_mutex_t mutex
    cdef Thread* asleep             # threads without work, the last one first
    cdef Job* first                 # jobs that no thread has taken, the oldest first
    cdef Job* last
    cdef Job* finished              # the last one first
    cdef bint ends

    def __cinit__(self):
        pthread_mutex_init(&self.mutex, NULL)
        self.descriptor = -1

    def __init__(self, loop, int threads, str name="leveret-commit"):
        self.loop = loop
        self.descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(errno, os.strerror(errno))
        self.slots = <Thread*>calloc(threads, sizeof(Thread))
        if self.slots == NULL:
            raise MemoryError
        loop.add_reader(self.descriptor, self._report)
        self.threads = []
        for number in range(threads):
            sem_init(&self.slots[number].wakes, 0, 0)
            thread = threading.Thread(
                target=self._run, args=(number,), name=f"{name}-{number}", daemon=True
            )
            self.threads.append(thread)
            thread.start()

    def __dealloc__(self):
        # No thread is left, and no job: threads have a reference, and `close` has taken all.
        pthread_mutex_destroy(&self.mutex)
        free(self.slots)

    def flush(self, list descriptors, done):
        """Flush open files in a thread, then call `done(failure, took_us)` on the loop.

        `failure` is the errno of the first file that could not be flushed, 0 if all were.
        """
        cdef Job* job = self._new_job(done)
        cdef int count = len(descriptors)
        job.is_flush = True
        job.descriptors = <int*>malloc(count * sizeof(int))
        if job.descriptors == NULL:
            free(job)
            raise MemoryError
        for descriptor in descriptors:
            job.descriptors[job.count] = descriptor
            job.count += 1
        self._hand_over(job)

    def submit(self, work, done, *, bint is_flush=False):
        """Run `work` in a thread, then call `done(error)` on the loop.

        `is_flush` says whether it waits for nothing but the disk (see `oldest_flush_us`).
        The error is the OSError that `work` raised, or None. Any other exception of `work` is a
        bug, and becomes an OSError that names it, so that no caller waits for ever.
        """
        cdef Job* job = self._new_job(done)
        job.is_flush = is_flush
        job.work = <PyObject*>work
        Py_INCREF(work)
        self._hand_over(job)

    cdef Job* _new_job(self, done) except NULL:
        cdef Job* job = <Job*>calloc(1, sizeof(Job))
        if job == NULL:
            raise MemoryError
        job.done = <PyObject*>done
        Py_INCREF(done)
        return job

    cdef void _hand_over(self, Job* job) noexcept:
        """Wake the thread that began to sleep last; if none sleeps, the next one to end takes it."""
        cdef Thread* thread
        pthread_mutex_lock(&self.mutex)
        thread = self.asleep
        if thread != NULL:
            self.asleep = thread.next
            thread.job = job
        elif self.first == NULL:
            self.first = self.last = job
        else:
            self.last.next = job
            self.last = job
        pthread_mutex_unlock(&self.mutex)
        if thread != NULL:
            sem_post(&thread.wakes)

    # -- in the threads

    def _run(self, int number):
        cdef Thread* thread = &self.slots[number]
        cdef Job* job
        with nogil:
            while True:
                job = self._next_job(thread)
                if job == NULL:
                    break
                self._begin(thread, job)
                if job.work == NULL:
                    flush(job)
                else:
                    with gil:
                        work_through(job)
                self._finish(thread, job)

    cdef Job* _next_job(self, Thread* thread) noexcept nogil:
        """Wait for a job; NULL at the end."""
        cdef Job* job
        pthread_mutex_lock(&self.mutex)
        job = self.first
        if job != NULL:
            self.first = job.next
        elif not self.ends:
            thread.job = NULL
            thread.next = self.asleep
            self.asleep = thread
            pthread_mutex_unlock(&self.mutex)
            while sem_wait(&thread.wakes) != 0 and errno == EINTR:
                pass
            return thread.job
        pthread_mutex_unlock(&self.mutex)
        return job

    cdef void _begin(self, Thread* thread, Job* job) noexcept nogil:
        """Note since when a thread flushes, if that is its job."""
        cdef int64_t now_us
        if not job.is_flush:
            return
        now_us = monotonic_us()
        pthread_mutex_lock(&self.mutex)
        thread.flushes_since_us = now_us
        pthread_mutex_unlock(&self.mutex)

    cdef void _finish(self, Thread* thread, Job* job) noexcept nogil:
        """Have a job reported; only the first of those that end together wakes the loop."""
        cdef uint64_t one = 1
        cdef bint is_first
        pthread_mutex_lock(&self.mutex)
        thread.flushes_since_us = 0
        is_first = self.finished == NULL
        job.next = self.finished
        self.finished = job
        pthread_mutex_unlock(&self.mutex)
        if is_first:
            write(self.descriptor, &one, sizeof(one))

    # -- on the loop

    @property
    def oldest_flush_us(self):
        """Time since the oldest flush that is running has begun; 0 while none is."""
        cdef int64_t since_us = 0, began_us
        cdef int number, count = len(self.threads)
        pthread_mutex_lock(&self.mutex)
        for number in range(count):
            began_us = self.slots[number].flushes_since_us
            if began_us and (not since_us or began_us < since_us):
                since_us = began_us
        pthread_mutex_unlock(&self.mutex)
        return monotonic_us() - since_us if since_us else 0

    def _report(self):
        cdef uint64_t count
        read(self.descriptor, &count, sizeof(count))
        call_each(self._results(), self._complain)

    def _complain(self, done, error):
        self.loop.call_exception_handler(
            {"message": f"{done!r} failed after a flush", "exception": error}
        )

    cdef list _results(self):
        """Return the calls that report what is finished, in the order in which it ended."""
        cdef Job* job
        cdef list results = []
        pthread_mutex_lock(&self.mutex)
        job = self.finished
        self.finished = NULL
        pthread_mutex_unlock(&self.mutex)
        while job != NULL:
            results.append(result(job))
            job = release(job)
        results.reverse()
        return results

    def close(self):
        """Finish what was submitted and end the threads."""
        cdef Thread* thread
        pthread_mutex_lock(&self.mutex)
        self.ends = True
        thread = self.asleep
        self.asleep = NULL
        pthread_mutex_unlock(&self.mutex)
        while thread != NULL:
            sem_post(&thread.wakes)
            thread = thread.next
        for joined in self.threads:
            joined.join()
        for number in range(len(self.threads)):
            sem_destroy(&self.slots[number].wakes)
        self.threads = []
        if self.descriptor >= 0:
            self.loop.remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
        results = self._results()
        if results and not self.loop.is_closed():
            self.loop.call_soon(call_each, results, self._complain)


cdef void work_through(Job* job) noexcept:
    """Run a job's work."""
    error = None
    try:
        (<object>job.work)()
    except OSError as failure:
        error = failure
    except Exception as bug:
        error = OSError(f"internal error: {bug!r}")
        error.__cause__ = bug
    job.error = <PyObject*>error
    Py_INCREF(error)


cdef object result(Job* job):
    """Return the call that reports a finished job."""
    done = <object>job.done
    if job.work == NULL:
        return partial(done, job.failure, job.took_us)
    return partial(done, <object>job.error)


cdef Job* release(Job* job) noexcept:
    """Free a finished job; return the next one."""
    cdef Job* following = job.next
    Py_DECREF(<object>job.done)
    if job.work != NULL:
        Py_DECREF(<object>job.work)
        Py_DECREF(<object>job.error)
    free(job.descriptors)
    free(job)
    return following
