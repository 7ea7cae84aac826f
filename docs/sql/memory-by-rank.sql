-- Which ranks have the most memory of GPUs? What the driver was asked for, in bytes.
select run, rank, max(value) as bytes, arg_max(t, value) as since
from memory
where what = 'vidmem'
group by run, rank
order by bytes desc, rank;
