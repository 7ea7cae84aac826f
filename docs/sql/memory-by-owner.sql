-- Whose is the memory of GPUs, in bytes: NCCL's, cuBLAS's, a framework's, the program's own, the driver's ("context")?
select run, rank, owner, max(value) as most, arg_max(value, t) as last
from memory
where what = 'allocated'
group by run, rank, owner
order by run, rank, most desc, owner;
