// The oracle answers as Kubernetes does, because Kubernetes' own packages give the answers: it compiles and evaluates
// DRA selectors, and allocates devices. Which minor version answers is decided by the module file it is built with.
//
// In: JSON lines on stdin, a header first. Out: one JSON line for each line after the header.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// A judge answers one line of input.
type judge func(line []byte) (any, error)

// Each command reads its header and returns the judge of the lines that follow.
var commands = map[string]func(header []byte) (judge, error){
	"selectors":  newSelectorJudge,
	"allocation": newAllocationJudge,
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 || commands[os.Args[1]] == nil {
		return fmt.Errorf("usage: oracle selectors|allocation < lines")
	}
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	defer output.Flush()
	header, err := input.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	answer, err := commands[os.Args[1]](header)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return nil // the end of the input
		}
		found, err := answer(line)
		if err != nil {
			return err
		}
		if err := encoder.Encode(found); err != nil {
			return err
		}
		if err := output.Flush(); err != nil {
			return err
		}
	}
}
