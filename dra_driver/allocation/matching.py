"""Matching: whether the selectors of a class and a request accept a device.

In: devices. Out: yes, no, or the error that ends the pod's scheduling. Each group of equal devices is judged once, for
all nodes and all requests with the same selectors.

Source: Kubernetes structured allocator, selectorsMatch: selectors in order, the first that is not true decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from dra_driver.allocation.outcome import AllocatorError, Category
from dra_driver.allocation.pools.devices import DeviceRecord
from dra_driver.model.wire import DeviceWire, Wire
from dra_driver.selectors import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.grouping import key_maker
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.readset import ReadSet

ChainVerdict = bool | AllocatorError


@dataclass(frozen=True, slots=True)
class OwnedSelector:
    """One selector of a chain: its owner ("class x" or "claim y"), and its program or the reason why there is none."""

    owner: str
    number: int
    expression: str
    selector: KubernetesSelector | SelectorCompileError

    @property
    def is_of_class(self) -> bool:
        """Whether the selector belongs to a device class."""
        return self.owner.startswith("class ")


@dataclass(frozen=True, slots=True, eq=False)
class GroupVerdict:
    """The verdict of a chain on a group of equal devices. `refused_by` is the selector that did not accept them."""

    verdict: ChainVerdict
    refused_by: OwnedSelector | None = None


_ACCEPTED = GroupVerdict(verdict=True)


class Matcher:
    """A chain of selectors with all its verdicts so far."""

    __slots__ = ("_by_device", "_by_key", "_keys", "chain", "reads")

    def __init__(self, chain: Sequence[OwnedSelector]) -> None:
        self.chain = chain
        read_sets = [one.selector.read_set for one in chain if isinstance(one.selector, KubernetesSelector)]
        self.reads = ReadSet(
            frozenset(read for one in read_sets for read in one.reads),
            frozenset(read for one in read_sets for read in one.guarded),
        )
        self._keys: dict[str, Callable[[DeviceWire], Hashable]] = {}  # by driver
        self._by_key: dict[Hashable, GroupVerdict] = {}
        self._by_device: dict[DeviceRecord, GroupVerdict] = {}

    def verdict(self, device: DeviceRecord) -> ChainVerdict:
        """Return whether the chain accepts a device, or the error with which a selector failed."""
        return self.group_verdict(device).verdict

    def group_verdict(self, device: DeviceRecord) -> GroupVerdict:
        """Return the verdict on a device's group: the same object for all refused devices of one group."""
        found = self._by_device.get(device)
        if found is None:
            make = self._keys.get(device.driver)
            if make is None:
                make = self._keys[device.driver] = key_maker(self.reads, device.driver)
            key = make(device.wire)
            found = self._by_key.get(key)
            if found is None:
                found = self._by_key[key] = self._judge(device)
            self._by_device[device] = found
        return found

    def _judge(self, device: DeviceRecord) -> GroupVerdict:
        view: DeviceView | None = None
        for one in self.chain:
            if isinstance(one.selector, SelectorCompileError):
                text = f"{one.owner}: selector #{one.number}: CEL compile error: {one.selector.text}"
                return GroupVerdict(AllocatorError(Category.CEL_COMPILE_ERROR, text), one)
            view = view or prepare_device(device.wire, device.driver)
            try:
                if not one.selector.matches_view(view):
                    return GroupVerdict(verdict=False, refused_by=one)
            except SelectorRuntimeError as error:
                text = f"{one.owner}: selector #{one.number}: CEL runtime error: {error.text}"
                return GroupVerdict(AllocatorError(Category.CEL_RUNTIME_ERROR, text), one)
        return _ACCEPTED


class Matchers:
    """Compiles selectors and keeps one matcher per chain."""

    def __init__(self, kubernetes: str, gates: dict[str, bool]) -> None:
        self._engine = KubernetesEngine(kubernetes, gates=gates)
        self._compiled: dict[str, KubernetesSelector | SelectorCompileError] = {}
        self._chains: dict[tuple[tuple[str, int, str], ...], Matcher] = {}

    def matcher(self, written: Sequence[tuple[str, Sequence[Wire]]]) -> Matcher:
        """Return the matcher for the selectors of several owners, in order."""
        chain = tuple(
            (owner, number, selector["cel"]["expression"])
            for owner, selectors in written
            for number, selector in enumerate(selectors)
        )
        found = self._chains.get(chain)
        if found is None:
            found = self._chains[chain] = Matcher([OwnedSelector(*one, self._compile(one[2])) for one in chain])
        return found

    def _compile(self, expression: str) -> KubernetesSelector | SelectorCompileError:
        known = self._compiled.get(expression)
        if known is None:
            try:
                known = self._engine.compile(expression)
            except SelectorCompileError as error:
                known = error
            self._compiled[expression] = known
        return known
