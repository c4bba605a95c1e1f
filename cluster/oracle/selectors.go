package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

// selectorHeader names the devices that every expression is evaluated on.
type selectorHeader struct {
	Driver      string               `json:"driver"`
	Devices     []resourceapi.Device `json:"devices"`
	Features    cel.Features         `json:"features"`
	Environment string               `json:"environment"`
}

// selectorVerdict says what became of one expression. Panics are those of Kubernetes' own compiler, and of its
// estimator of costs.
type selectorVerdict struct {
	Error       string          `json:"error,omitempty"`
	Panic       string          `json:"panic,omitempty"`
	Type        string          `json:"type,omitempty"`
	Unestimated string          `json:"unestimated,omitempty"`
	Cost        string          `json:"cost,omitempty"`
	Devices     []deviceVerdict `json:"devices,omitempty"`
}

type deviceVerdict struct {
	Match bool   `json:"match,omitempty"`
	Error string `json:"error,omitempty"`
	Panic string `json:"panic,omitempty"`
}

func newSelectorJudge(line []byte) (judge, error) {
	var header selectorHeader
	if err := json.Unmarshal(line, &header); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	kind := environment.StoredExpressions
	if header.Environment == "new" {
		kind = environment.NewExpressions
	}
	compiler := cel.GetCompiler(header.Features)
	compile := func(expression string, estimate bool) (compiled cel.CompilationResult, panicked string) {
		defer func() {
			if reason := recover(); reason != nil {
				panicked = fmt.Sprint(reason)
			}
		}()
		return compiler.CompileCELExpression(expression, cel.Options{EnvType: &kind, DisableCostEstimation: !estimate}), ""
	}
	return func(line []byte) (any, error) {
		var expression string
		if err := json.Unmarshal(line, &expression); err != nil {
			return nil, fmt.Errorf("read an expression: %w", err)
		}
		return judgeSelector(header, compile, expression), nil
	}, nil
}

// judgeSelector compiles with the cost as the API server does; where estimating panics, it goes on as the scheduler
// does, which never estimates.
func judgeSelector(
	header selectorHeader, compile func(string, bool) (cel.CompilationResult, string), expression string,
) selectorVerdict {
	compiled, unestimated := compile(expression, true)
	if unestimated != "" {
		again, panicked := compile(expression, false)
		if panicked != "" {
			return selectorVerdict{Panic: panicked}
		}
		compiled = again
	}
	if compiled.Error != nil {
		return selectorVerdict{Error: compiled.Error.Detail}
	}
	verdict := selectorVerdict{Type: compiled.OutputType.String(), Unestimated: unestimated}
	verdict.Cost = strconv.FormatUint(compiled.MaxCost, 10)
	for _, device := range header.Devices {
		verdict.Devices = append(verdict.Devices, judgeDevice(compiled, header.Driver, device))
	}
	return verdict
}

func judgeDevice(compiled cel.CompilationResult, driver string, device resourceapi.Device) (verdict deviceVerdict) {
	defer func() {
		if reason := recover(); reason != nil {
			verdict = deviceVerdict{Panic: fmt.Sprint(reason)}
		}
	}()
	match, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   driver,
		AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes:               device.Attributes,
		Capacity:                 device.Capacity,
	})
	if err != nil {
		return deviceVerdict{Error: err.Error()}
	}
	return deviceVerdict{Match: match}
}
