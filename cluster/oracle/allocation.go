package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// world is one problem: the claims of one pod, to be allocated on each node by itself. The names of the features are
// those of the allocators; one that this minor version does not know is ignored.
type world struct {
	Switches  json.RawMessage              `json:"features"`
	Nodes     []*v1.Node                   `json:"nodes"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`

	features  structured.Features
	selectors cel.Features
}

type allocationHeader struct {
	Seconds float64 `json:"seconds"` // how long one allocation may take
	Runs    int     `json:"runs"`    // how often it is repeated: Go's maps have no order
}

// outcome is one answer that was seen for a node.
type outcome struct {
	Results []resourceapi.AllocationResult `json:"results,omitempty"`
	Error   string                         `json:"error,omitempty"`
	Panic   string                         `json:"panic,omitempty"`
	Late    bool                           `json:"late,omitempty"` // it took longer than allowed
}

func newAllocationJudge(line []byte) (judge, error) {
	var header allocationHeader
	if err := json.Unmarshal(line, &header); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	return func(line []byte) (any, error) {
		var problem world
		if err := json.Unmarshal(line, &problem); err != nil {
			return nil, fmt.Errorf("read a world: %w", err)
		}
		if err := problem.readFeatures(); err != nil {
			return nil, fmt.Errorf("read the features of a world: %w", err)
		}
		answers := map[string][]json.RawMessage{}
		for _, node := range problem.Nodes {
			seen, err := problem.outcomes(node, header)
			if err != nil {
				return nil, err
			}
			answers[node.Name] = seen
		}
		return answers, nil
	}, nil
}

// readFeatures reads what the allocator may do, and what of it concerns selectors.
func (w *world) readFeatures() error {
	if err := json.Unmarshal(w.Switches, &w.features); err != nil {
		return err
	}
	var known struct{ ConsumableCapacity, ListTypeAttributes bool }
	if err := json.Unmarshal(w.Switches, &known); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]bool{
		"EnableConsumableCapacity": known.ConsumableCapacity,
		"EnableListTypeAttributes": known.ListTypeAttributes,
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &w.selectors)
}

// outcomes repeats the allocation until repeating it shows nothing new.
func (w *world) outcomes(node *v1.Node, header allocationHeader) ([]json.RawMessage, error) {
	var seen []json.RawMessage
	known := sets.New[string]()
	for quiet := 0; quiet < header.Runs; quiet++ {
		found := w.allocate(node, w.listed(quiet%2 == 1), header)
		text, err := json.Marshal(found.renamed())
		if err != nil {
			return nil, err
		}
		if !known.Has(string(text)) {
			known.Insert(string(text))
			seen = append(seen, text)
			quiet = 0
		}
		if found.Late {
			break
		}
	}
	return seen, nil
}

// listed returns the slices in one of the orders that the scheduler may see: its informer lists them from a Go map. A
// Go map of a few pools repeats the order in which they were found, only from another start, so that repeating alone
// does not show what other orders lead to. The order within a pool stays.
func (w *world) listed(sorted bool) []*resourceapi.ResourceSlice {
	if !sorted {
		return w.Slices
	}
	byPool := slices.Clone(w.Slices)
	slices.SortStableFunc(byPool, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(a.Spec.Driver, b.Spec.Driver), cmp.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name))
	})
	return byPool
}

func (w *world) allocate(
	node *v1.Node, listed []*resourceapi.ResourceSlice, header allocationHeader,
) (found outcome) {
	limit := time.Duration(header.Seconds * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if reason := recover(); reason != nil {
			found = outcome{Panic: fmt.Sprint(reason)}
		}
	}()
	cache := cel.NewCache(10, w.selectors)
	allocator, err := structured.NewAllocator(ctx, w.features, w.state(), w, listed, cache)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	results, err := allocator.Allocate(ctx, node, w.Claims)
	if ctx.Err() != nil {
		return outcome{Late: true}
	}
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return outcome{Results: results}
}

// renamed replaces the random share IDs by numbers in order of appearance.
func (o outcome) renamed() outcome {
	number := 0
	for _, result := range o.Results {
		for index := range result.Devices.Results {
			if id := result.Devices.Results[index].ShareID; id != nil {
				number++
				*id = types.UID(fmt.Sprintf("share-%d", number))
			}
		}
	}
	return o
}

// state is what the scheduler plugin dynamicresources remembers of the claims that have an allocation.
func (w *world) state() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range w.Allocated {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			w.hold(state, result)
		}
	}
	return state
}

func (w *world) hold(state structured.AllocatedState, result resourceapi.DeviceRequestAllocationResult) {
	if result.AdminAccess != nil && *result.AdminAccess {
		return
	}
	device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
	if !w.features.ConsumableCapacity || result.ShareID == nil {
		state.AllocatedDevices.Insert(device)
		return
	}
	state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
	if result.ConsumedCapacity != nil {
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
	}
}

// List and Get make a world the lister of its classes.
func (w *world) List() ([]*resourceapi.DeviceClass, error) { return w.Classes, nil }

func (w *world) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range w.Classes {
		if class.Name == name {
			return class, nil
		}
	}
	resource := schema.GroupResource{Group: resourceapi.GroupName, Resource: "deviceclasses"}
	return nil, apierrors.NewNotFound(resource, name)
}
