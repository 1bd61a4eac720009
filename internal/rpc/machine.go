package rpc

import (
	"context"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
)

// Machines serves MachineService.
type Machines struct {
	*Mutations
	Reader *machine.Reader
}

func (s *Machines) DefineMachine(ctx context.Context, r *pb.DefineMachineRequest) (*pb.DefineMachineResponse, error) {
	return run(ctx, s.Mutations, defineMachineOperation, r)
}

var defineMachineOperation = register("machine.define_machine",
	func(c *call, d *decoder, r *pb.DefineMachineRequest) mutation[*pb.DefineMachineResponse] {
		d.ownMachine("machine", r.GetMachine())
		cmd := machine.NewDefine(c.caller(), r.GetMachine(), d.definition("definition.", r.GetDefinition()))
		return newMutation(flow.Machine(cmd), cmd.Rows(),
			func(v machine.Version, existed bool) *pb.DefineMachineResponse {
				return &pb.DefineMachineResponse{Machine: renderMachine(v), Existed: existed}
			})
	})

// ownMachine returns the name of a machine. It rejects those of coupons, payments and refunds: other services create
// and move their instances.
func (d *decoder) ownMachine(field, name string) string {
	if machine.Own(name) {
		d.bad(field, "must not be coupon, payment or refund: SaleService and PaymentService own these machines")
	}
	return name
}

func (s *Machines) CreateInstance(ctx context.Context, r *pb.CreateInstanceRequest) (*pb.CreateInstanceResponse,
	error) {
	return run(ctx, s.Mutations, createInstanceOperation, r)
}

var createInstanceOperation = register("machine.create_instance",
	func(c *call, d *decoder, r *pb.CreateInstanceRequest) mutation[*pb.CreateInstanceResponse] {
		d.ownMachine("machine", r.GetMachine())
		cmd := &machine.CreateCommand{Caller: c.caller(), CreateParams: machine.CreateParams{Machine: r.GetMachine(),
			Key: d.name("key", r.GetKey()), Owner: d.name("owner", r.GetOwner()),
			Timer: durationOr(r.GetTimer(), 0)}}
		return newMutation(flow.Machine(cmd), 2, func(i machine.Instance, existed bool) *pb.CreateInstanceResponse {
			return &pb.CreateInstanceResponse{Instance: renderInstance(i), Existed: existed}
		})
	})

func (s *Machines) Move(ctx context.Context, r *pb.MoveRequest) (*pb.MoveResponse, error) {
	return run(ctx, s.Mutations, moveOperation, r)
}

var moveOperation = register("machine.move",
	func(c *call, d *decoder, r *pb.MoveRequest) mutation[*pb.MoveResponse] {
		cmd := &machine.MoveCommand{Caller: c.caller(), MoveParams: machine.MoveParams{Machine: r.GetMachine(),
			Key: d.name("key", r.GetKey()), To: r.GetTo(), From: r.GetFrom(), Revision: r.GetRevision(),
			Cause: d.name("cause", r.GetCause()), Reason: r.GetReason(),
			Inputs: d.metadata("inputs", r.GetInputs())}}
		return newMutation(flow.Machine(cmd), 2, func(i machine.Instance, existed bool) *pb.MoveResponse {
			return &pb.MoveResponse{Instance: renderInstance(i), Existed: existed}
		})
	})

func (s *Machines) GetMachine(ctx context.Context, r *pb.GetMachineRequest) (*pb.GetMachineResponse, error) {
	v, err := s.Reader.Machine(ctx, machineName(ctx, r.GetMachine()), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &pb.GetMachineResponse{Machine: renderMachine(v)}, nil
}

func (s *Machines) GetDiagram(ctx context.Context, r *pb.GetDiagramRequest) (*pb.GetDiagramResponse, error) {
	v, err := s.Reader.Machine(ctx, machineName(ctx, r.GetMachine()), r.GetVersion())
	if err != nil {
		return nil, err
	}
	return &pb.GetDiagramResponse{Mermaid: machine.Diagram(v.Definition), Version: v.Number}, nil
}

func (s *Machines) ListMachines(ctx context.Context, r *pb.ListMachinesRequest) (*pb.ListMachinesResponse, error) {
	list, next, err := s.Reader.Machines(ctx, callOf(ctx).identity.Tenant, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListMachinesResponse{Machines: each(list, renderMachine), NextPageToken: next}, err
}

func (s *Machines) GetInstance(ctx context.Context, r *pb.GetInstanceRequest) (*pb.GetInstanceResponse, error) {
	i, err := s.Reader.Instance(ctx, instanceKey(ctx, r))
	return &pb.GetInstanceResponse{Instance: renderInstance(i)}, err
}

func (s *Machines) ListInstances(ctx context.Context, r *pb.ListInstancesRequest) (*pb.ListInstancesResponse, error) {
	list, next, err := s.Reader.Instances(ctx, callOf(ctx).identity.Tenant,
		machine.Filter{Machine: r.GetMachine(), State: r.GetState(), Owner: r.GetOwner()}, int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListInstancesResponse{Instances: each(list, renderInstance), NextPageToken: next}, err
}

func (s *Machines) ListHistory(ctx context.Context, r *pb.ListHistoryRequest) (*pb.ListHistoryResponse, error) {
	list, next, err := s.Reader.History(ctx, instanceKey(ctx, r), int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListHistoryResponse{Entries: each(list, renderMove), NextPageToken: next}, err
}

func machineName(ctx context.Context, name string) machine.Name {
	return machine.Name{Tenant: callOf(ctx).identity.Tenant, Machine: name}
}

func instanceKey(ctx context.Context, r interface {
	GetMachine() string
	GetKey() string
}) machine.Key {
	return machine.Key{Tenant: callOf(ctx).identity.Tenant, Machine: r.GetMachine(), Key: r.GetKey()}
}
