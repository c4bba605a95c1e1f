// Floor is the least that a DRA driver in Go does for a claim: what Kubernetes' own helper does (sockets,
// registration, the GET of the claim, the slices), one CDI file and one checkpoint. It drives no hardware. The
// benchmarks measure this driver beside it, in one run on one API server.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

const driver = "floor.example.com"

// device is what the checkpoint keeps of one prepared device.
type device struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	CDI     string `json:"cdi"`
}

// floor prepares claims; `prepared` is the checkpoint's content, by claim UID.
type floor struct {
	cdi, checkpoint string
	mutex           sync.Mutex
	prepared        map[types.UID][]device
}

func (f *floor) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		devices, err := f.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: answer(devices), Err: err}
	}
	return results, nil
}

func (f *floor) prepare(claim *resourceapi.ResourceClaim) ([]device, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if devices, ok := f.prepared[claim.UID]; ok {
		return devices, nil
	}
	var devices []device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driver {
			continue
		}
		for uid, held := range f.prepared {
			for _, other := range held {
				if other.Device == result.Device {
					return nil, fmt.Errorf("device %s is held by claim %s", result.Device, uid)
				}
			}
		}
		id := fmt.Sprintf("%s/claim=%s-%s", driver, claim.UID, result.Device)
		devices = append(devices, device{result.Request, result.Pool, result.Device, id})
	}
	if err := f.writeSpec(claim.UID, devices); err != nil {
		return nil, err
	}
	f.prepared[claim.UID] = devices
	return devices, f.save()
}

func (f *floor) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		results[claim.UID] = f.unprepare(claim.UID)
	}
	return results, nil
}

func (f *floor) unprepare(uid types.UID) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if _, ok := f.prepared[uid]; !ok {
		return nil
	}
	if err := os.Remove(f.spec(uid)); err != nil && !os.IsNotExist(err) {
		return err
	}
	delete(f.prepared, uid)
	return f.save()
}

func (f *floor) HandleError(ctx context.Context, err error, message string) {
	klog.FromContext(ctx).Error(err, message)
}

func (f *floor) spec(uid types.UID) string {
	return filepath.Join(f.cdi, fmt.Sprintf("%s-%s.json", driver, uid))
}

// writeSpec writes one device node, one variable and one mount for each device, as a GPU driver has at the least.
func (f *floor) writeSpec(uid types.UID, devices []device) error {
	entries := []map[string]any{}
	for _, each := range devices {
		edits := map[string]any{
			"env":         []string{"FLOOR_DEVICE=" + each.Device},
			"deviceNodes": []map[string]any{{"path": "/dev/null", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}},
			"mounts":      []map[string]any{{"hostPath": "/etc/hostname", "containerPath": "/etc/floor", "options": []string{"ro", "bind"}}},
		}
		entries = append(entries, map[string]any{"name": fmt.Sprintf("%s-%s", uid, each.Device), "containerEdits": edits})
	}
	content, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": driver + "/claim", "devices": entries})
	if err != nil {
		return err
	}
	return replace(f.spec(uid), content, false)
}

// save writes the checkpoint as the kubelet's own checkpoint manager does: a new file, synced, in place of the old.
func (f *floor) save() error {
	content, err := json.Marshal(f.prepared)
	if err != nil {
		return err
	}
	return replace(f.checkpoint, content, true)
}

func replace(path string, content []byte, sync bool) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if _, err = file.Write(content); err == nil && sync {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func answer(devices []device) []kubeletplugin.Device {
	var result []kubeletplugin.Device
	for _, each := range devices {
		result = append(result, kubeletplugin.Device{
			Requests: []string{each.Request}, PoolName: each.Pool, DeviceName: each.Device, CDIDeviceIDs: []string{each.CDI},
		})
	}
	return result
}

func run(ctx context.Context, node, kubeconfig, registry, plugins, cdi string, count int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000 // as the peers are measured: their own limits would be all one sees
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(plugins, driver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	plugin := &floor{cdi: cdi, checkpoint: filepath.Join(data, "checkpoint.json"), prepared: map[types.UID][]device{}}
	helper, err := kubeletplugin.Start(ctx, plugin,
		kubeletplugin.DriverName(driver), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.Serialize(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	var devices []resourceapi.Device
	for index := range count {
		devices = append(devices, resourceapi.Device{Name: fmt.Sprintf("device-%d", index)})
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	node := flag.String("node-name", "", "this node")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	registry := flag.String("registry", kubeletplugin.KubeletRegistryDir, "where the kubelet looks for plugins")
	plugins := flag.String("plugins", kubeletplugin.KubeletPluginsDir, "where plugins keep their data")
	cdi := flag.String("cdi", "/var/run/cdi", "where CDI files go")
	count := flag.Int("devices", 8, "how many devices to publish")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *node, *kubeconfig, *registry, *plugins, *cdi, *count); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
