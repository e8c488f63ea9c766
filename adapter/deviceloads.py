"""One rank's loads into memory of a device: queued on streams, never waited for.

*Before the forward*: queued on the engine's main stream, whose order is all that is needed: behind
the work that may still use recycled pages, and before the forward (host contract rule 5). *In the
background* and *by layer*: queued on a stream of our own behind the same point of the main stream;
a layer's attention is held up by an event, on the device.

A hook therefore costs what queueing costs. Whether a load was good is known only when its copies
are done: a failure is raised by the first hook that comes then, ``wait_for_save`` and
``get_finished`` included, and nothing is saved of a forward before its loads are known to be good.
An engine without overlap answers its clients between those two hooks (host contract §5, step 13):
tokens of that one iteration may be out when ``get_finished`` raises. A device that failed shows in
the engine's own wait for its samples, before that.

Must not know: tokens, the host's reports, how the server is reached. Runs in: the executor's
thread; the loader's thread looks after what flies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from adapter.copy import LoadError
from adapter.flights import Flight, Flights, Landing, LoadedMark, NoEvent
from adapter.geometry import Geometry
from adapter.journal import Journal
from adapter.loadbatches import DeviceLoad, held_device_load, join
from adapter.loader import STREAM_LIMIT_S, Loader, as_load_error, pass_gate
from adapter.loads import Leases, Loads, shards_of
from adapter.metadata import LoadOrder
from adapter.pagememory import PageMemory
from adapter.saveentry import Mark
from protocol.device.interface import Batch, Device, DeviceError, Direction, Event, Stream
from protocol.ids import Epoch, LeaseId

_Batches = Callable[[Sequence[DeviceLoad]], Iterable[Batch]]


class LayerEvents:
    """One batch's loads, queued layer by layer: the device holds up each layer's attention."""

    def __init__(self, device: Device, events: Mapping[int, Event], main: Stream) -> None:
        """Takes what was recorded.

        Args:
            device: where.
            events: behind each layer's bytes, by layer; the last one is behind all.
            main: the engine's main stream (M).
        """
        self._device = device
        self._events = events
        self._main = main

    def wait(self, layer: int, stream: object) -> None:
        """Orders what comes next on a stream behind one layer's bytes; returns at once.

        Args:
            layer: model layer; one that has nothing in the pool is not waited for.
            stream: of the forward (X).

        Raises:
            DeviceError: the stream takes no order.
        """
        event = self._events.get(layer)
        if event is not None:
            self._device.wait(self._device.borrow_stream(stream), event)

    def wait_all(self) -> None:
        """Orders what comes next on the main stream behind all bytes; returns at once.

        Raises:
            DeviceError: the stream takes no order.
        """
        for event in list(self._events.values())[-1:]:
            self._device.wait(self._main, event)


class DeviceLoads(Loads):
    """All loads of one rank. Belongs to the executor's thread."""

    def __init__(
        self,
        memory: PageMemory,
        geometry: Geometry,
        journal: Journal,
        loader: Loader,
        device: Device,
        by_layer: bool = False,
        limit_s: float = STREAM_LIMIT_S,
    ) -> None:
        """Starts nothing.

        Args:
            memory: this rank's pages, of the device.
            geometry: of them.
            journal: counts what was loaded.
            loader: of this rank; its thread is bound to the device.
            device: of the pages.
            by_layer: as for ``Loads``.
            limit_s: longest time that the device may take for a load.
        """
        super().__init__(memory, geometry, journal, loader, by_layer)
        self._device = device
        self._by_layer = by_layer
        self._limit_s = limit_s
        self._flights = Flights()
        self._own: list[Stream] = []
        weakref.finalize(self, _close_all, self._own).atexit = False
        self._forward: object = None
        self._unlaunched: Event | None = None

    @property
    def num_flying(self) -> int:
        """Loads whose copies are not known to be done."""
        return self._flights.num_flying

    # --- the hooks ---

    def wait_for_layer(self, layer: int, stream: object) -> None:
        """Has the device hold up a layer's attention for its bytes. See ``Loads``."""
        self._forward = stream
        if self._by_layer:  # else nothing is done, and that for each layer of each forward
            with _load_errors():
                super().wait_for_layer(layer, stream)

    def launched(self) -> None:
        """Ends a forward; raises what is known to have failed by now. See ``Loads``."""
        super().launched()
        self._unlaunched = None  # the forward is ordered behind it, and all that follows behind it
        self._check_flights()

    def guard(self, mark: Mark | None) -> Mark | None:
        """As ``Loads.guard``: the forward ran before anybody knew whether its loads were good."""
        return None if mark is None else LoadedMark(mark, self._flights)

    def take_arrived(self, announced: Iterable[int]) -> list[int]:
        """Ends an iteration; raises what is known to have failed by now. See ``Loads``."""
        self._check_flights()
        with _load_errors():
            return super().take_arrived(announced)

    # --- beneath them ---

    def _check(self) -> None:
        self._check_flights()
        super()._check()

    def _check_flights(self) -> None:
        self._flights.settle()
        self._flights.check()

    def _finish_batch(self) -> None:
        """A forward that was skipped, or broke off, was never ordered behind its loads.

        The host takes its pages back, and may copy into them behind nothing but the forward's
        stream (host contract §5: partial reuse), so that one is ordered behind the loads as well.
        """
        super()._finish_batch()
        event, self._unlaunched = self._unlaunched, None
        if event is None or event.query():
            return
        if self._forward is None:
            pass_gate(event)  # no forward ever showed its stream: that is rare enough to wait for
        else:
            self._device.wait(self._device.borrow_stream(self._forward), event)

    def _begin_orders(
        self,
        orders: Sequence[LoadOrder],
        owed: dict[bytes, LeaseId],
        leases: Leases,
        stream: object,
        may_fire: bool,
    ) -> None:
        self._device.bind()  # nothing of CUDA's runtime may have run in this thread so far
        main = self._device.borrow_stream(stream)
        parked = [order for order in orders if order.is_async]
        now = [order for order in orders if not order.is_async]
        if parked:
            own = self._behind(main)
            for order in parked:
                self._park_flying(order, owed, leases, own)
        if now and self._trusts_hooks(may_fire):
            self._begin_layers(now, owed, leases, main)
            return
        for order in now:
            (self._unlaunched,) = self._launch([order], owed, leases, main, _whole)
            self._note(order)

    def _behind(self, main: Stream) -> Stream:
        """Our own stream, ordered behind what is queued on the main stream now."""
        if not self._own:
            self._own.append(self._device.create_stream())
        own = self._own[0]
        self._device.wait(own, self._device.record(main))
        return own

    def _park_flying(
        self, order: LoadOrder, owed: dict[bytes, LeaseId], leases: Leases, own: Stream
    ) -> None:
        """Loads for a request outside the batch."""
        self._arrivals.begin(order.request_id)
        self._note(order)
        try:
            self._launch([order], owed, leases, own, _whole, order.request_id)
        except Exception as error:
            if order.lease in owed:  # nothing was queued, so nobody else tells
                self._arrivals.end(order.request_id, as_load_error(error))
            raise

    def _begin_layers(
        self, orders: Sequence[LoadOrder], owed: dict[bytes, LeaseId], leases: Leases, main: Stream
    ) -> None:
        """Loads beside the forward, the first layer of all orders first."""
        layers = dict(sorted(self._memory.layers.items()))

        def batches(loads: Sequence[DeviceLoad]) -> Iterator[Batch]:
            for slices in layers.values():
                yield join([load.layer(slices) for load in loads])

        events = self._launch(orders, owed, leases, self._behind(main), batches)
        self._batch = LayerEvents(self._device, dict(zip(layers, events, strict=True)), main)
        self._unlaunched = events[-1]
        self._journal.count("layerwise_batches")
        for order in orders:
            self._note(order)

    def _launch(
        self,
        orders: Sequence[LoadOrder],
        owed: dict[bytes, LeaseId],
        leases: Leases,
        stream: Stream,
        batches_of: _Batches,
        request_id: int | None = None,
    ) -> list[Event]:
        """Queues the copies of some orders. From the first one on their flight owns what they hold.

        Args:
            orders: which; once something may be queued they are taken out of ``owed``.
            owed: leases that the caller gives back.
            leases: where the bytes are.
            stream: where to queue.
            batches_of: what to queue.
            request_id: who waits for them outside the batch.

        Returns:
            An event behind each batch.

        Raises:
            LoadError: a load is not possible.
            DeviceError: something could not be queued.
        """
        with ExitStack() as holding:
            loads = [holding.enter_context(self._held_on_device(o, leases)) for o in orders]
            for load in loads:
                load.check()
            events: list[Event] = []
            has_begun, failure = False, None
            try:
                for batch in batches_of(loads):
                    has_begun = True  # also where it fails: better held too long than not
                    if batch.sizes.size:
                        self._device.copy(stream, batch, Direction.TO_DEVICE)
                    events.append(self._device.record(stream))
            except Exception as error:
                if not has_begun:
                    raise
                failure = error
            flight = Flight(
                loads,
                holding.pop_all(),
                events[-1] if failure is None else self._end_of(stream),
                _releaser(leases, [owed.pop(order.lease) for order in orders]),
                self._teller(loads, request_id),
                self._limit_s,
            )
        if failure is not None:
            flight.fail(as_load_error(failure))
        self._flights.add(flight)
        # A loader that ends takes nothing in: then the hooks alone look.
        self._loader.submit(Landing(self._flights, flight))
        if failure is not None:
            raise failure
        return events

    def _held_on_device(
        self, order: LoadOrder, leases: Leases
    ) -> AbstractContextManager[DeviceLoad]:
        shards = shards_of(order, self._geometry, self._memory)
        return held_device_load(leases.extents, Epoch(order.epoch), shards)

    def _end_of(self, stream: Stream) -> Mark:
        try:
            return self._device.record(stream)
        except Exception as error:  # noqa: BLE001 - then nobody sees the end of what was queued
            return NoEvent(error)

    def _teller(
        self, loads: Sequence[DeviceLoad], request_id: int | None
    ) -> Callable[[LoadError | None], None]:
        num_bytes = sum(load.num_bytes for load in loads)
        num_pages = sum(load.num_pages for load in loads)
        flights, arrivals, journal = self._flights, self._arrivals, self._journal

        def tell(failure: LoadError | None) -> None:
            if failure is None:
                journal.count("bytes_loaded", num_bytes)
                journal.count("pages_loaded", num_pages)
            else:
                flights.fail(failure)
            if request_id is not None:
                arrivals.end(request_id, failure)

        return tell


def loads_for(
    memory: PageMemory, geometry: Geometry, journal: Journal, loader: Loader, by_layer: bool
) -> Loads:
    """The loads of one rank, by the kind of its memory; arguments as for ``Loads``."""
    if memory.device is None:
        return Loads(memory, geometry, journal, loader, by_layer)
    return DeviceLoads(memory, geometry, journal, loader, memory.device, by_layer)


def _close_all(streams: Sequence[Stream]) -> None:
    for stream in streams:
        with suppress(DeviceError):  # a device that failed took its streams along
            stream.close()


def _whole(loads: Sequence[DeviceLoad]) -> Iterable[Batch]:
    return [join([load.whole() for load in loads])]


def _releaser(leases: Leases, lent: Sequence[LeaseId]) -> Callable[[], None]:
    def release() -> None:
        for lease in lent:
            leases.release(lease)

    return release


@contextmanager
def _load_errors() -> Iterator[None]:
    """Whatever goes wrong with a load is raised as one."""
    try:
        yield
    except LoadError:
        raise
    except Exception as error:
        raise as_load_error(error) from error
