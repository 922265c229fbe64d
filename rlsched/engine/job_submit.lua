-- job_submit.lua of rlsched: jobs of the handed-over partitions are held at their submission.
-- rlsched's gateway decides when and where they start, and releases them. Printed by
-- `rlsched engine slurm --print-lua`; put it next to slurm.conf, with JobSubmitPlugins=lua.
--
-- The AdminComment of such a job begins with `rlsched:`; g: GPUs per node, n: nodes, s: stamp,
-- x: its GPU request was removed, so that the gateway can set exact GPUs; u: the signal of `--signal` in
-- its script, which the gateway sends before it requeues the job.

local PARTITIONS = { @PARTITIONS@ }   -- handed-over partitions
local GATEWAY_UID = @UID@             -- the gateway's writes pass
local ALIVE = "@ALIVE@"               -- the gateway updates this file while a broker decides
local RELEASE_AFTER_S = @RELEASE_AFTER_S@
local EXACT = @EXACT@                 -- every GPU has a GRES type of its own
local HELD, FREE = "[held]", "[released]"

local count = 0

local function is_ours(name)
  for one in string.gmatch(name or "", "[^,]+") do
    if PARTITIONS[one] then return true end
  end
  return false
end

local function somebody_decides()
  local file = io.open(ALIVE, "r")
  if file == nil then return false end
  local said = tonumber(file:read("*l") or "")
  file:close()
  return said ~= nil and os.time() - said < RELEASE_AFTER_S
end

local function set(value)
  return value ~= nil and value ~= slurm.NO_VAL and value ~= slurm.NO_VAL16 and value ~= slurm.NO_VAL64
end

local function gpus_in(text)
  if text == nil or text == "" then return 0 end
  local total, typed = 0, false
  for part in string.gmatch(text, "[^,]+") do
    part = string.gsub(part, "^gres[:/]", "")
    if string.match(part, "^gpu") then
      local number = string.match(part, "^gpu:(%d+)$") or string.match(part, "^gpu=(%d+)$")
      if string.match(part, "^gpu$") then number = "1" end
      if number == nil then typed = true else total = total + tonumber(number) end
    else
      typed = true
    end
  end
  return total, typed
end

-- GPUs per node and nodes, or why the gateway cannot place the job.
local function shape(job)
  local nodes = 1
  if set(job.min_nodes) and job.min_nodes > 1 then nodes = job.min_nodes end
  if set(job.max_nodes) and job.max_nodes > 0 and job.max_nodes ~= nodes and set(job.min_nodes) then
    return nil, nil, "nodes"
  end
  local per_node, odd = gpus_in(job.tres_per_node)
  local per_job, odd_too = gpus_in(job.tres_per_job)
  local per_task, odd_three = gpus_in(job.tres_per_task)
  if odd or odd_too or odd_three or (job.tres_per_socket or "") ~= "" then return nil, nil, "gres" end
  if per_task > 0 then
    local tasks = 1
    if set(job.num_tasks) and job.num_tasks > 0 then tasks = job.num_tasks end
    per_job = per_task * tasks
  end
  if per_node == 0 and per_job > 0 then
    if per_job % nodes ~= 0 then return nil, nil, "gpus" end
    per_node = per_job / nodes
  end
  for _, field in ipairs({ "features", "req_nodes", "exc_nodes", "licenses", "reservation", "prefer" }) do
    if (job[field] or "") ~= "" then return nil, nil, field end
  end
  if job.contiguous == 1 then return nil, nil, "contiguous" end
  return per_node, nodes, nil
end

-- The signal of `#SBATCH --signal=[B:]SIGNAL[@TIME]` in a script, or nil. slurmctld does not tell the plugin
-- about `--signal` on the command line.
local function signal_in(script)
  local found = nil
  for line in string.gmatch(script, "[^\n]+") do
    if string.match(line, "^%s*[^#%s]") then break end   -- sbatch reads no options after the first command
    local said = string.match(line, "^#SBATCH.*%s%-%-signal[=%s]+[\"']?([%w:]+)")
    if said ~= nil then
      local flags, name = string.match(said, "^([RB]+):(%w+)$")
      found = string.match(flags or "", "B") and "B:" .. name or name or string.match(said, "^%w+$")
    end
  end
  return found
end

function slurm_job_submit(job, part_list, uid)
  local partition = job.partition
  if partition == nil or partition == "" then
    for name, part in pairs(part_list) do
      if part.flag_default == 1 then partition = name end
    end
  end
  if not is_ours(partition) or not somebody_decides() then return slurm.SUCCESS end
  local per_node, nodes, why = shape(job)
  if EXACT and why == nil and per_node > 1 and (job.script or "") == "" then
    why = "interactive"   -- Slurm refuses the step of `srun --gres=gpu:2` in a job whose GPUs have types
  end
  if why ~= nil then
    job.admin_comment = "rlsched:left=" .. why   -- Slurm's own order: rlsched does not support its request
    return slurm.SUCCESS
  end
  if per_node == 0 then return slurm.SUCCESS end
  count = count + 1
  local marks = { string.format("g=%d", per_node), string.format("n=%d", nodes), "s=" .. string.format("%x-%x", os.time(), count) }
  if EXACT then
    job.tres_per_node, job.tres_per_job, job.tres_per_task = "", "", ""
    table.insert(marks, "x=1")
    if job.environment ~= nil and job.environment["SLURM_GPUS_PER_NODE"] ~= nil then
      job.environment["SLURM_GPUS_PER_NODE"] = ""   -- a plain srun in the script gets the job's GPUs
    end
  end
  local signal = signal_in(job.script or "")
  if signal ~= nil then table.insert(marks, "u=" .. signal) end
  if job.priority == 0 then
    job.comment = HELD .. (job.comment or "")    -- sbatch --hold: until its user runs `scontrol release`
  end
  job.admin_comment = "rlsched:" .. table.concat(marks, ";")
  job.priority = 0
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, part_list, uid)
  if uid == 0 or uid == GATEWAY_UID then return slurm.SUCCESS end
  local ours = string.match(record.admin_comment or "", "^rlsched:.*s=") ~= nil
  local left = string.match(record.admin_comment or "", "^rlsched:.*left=") ~= nil
  if not ours and not left then return slurm.SUCCESS end
  if set(job.priority) then
    local comment = string.gsub(record.comment or "", "^%[%l+%]", "")
    comment = (job.priority == 0 and HELD or FREE) .. comment   -- Slurm ignores an empty comment
    job.comment = comment
    if ours then job.priority = slurm.NO_VAL end
  end
  if left then return slurm.SUCCESS end
  if (job.tres_per_node or "") ~= "" or (job.tres_per_job or "") ~= "" or (job.req_nodes or "") ~= "" then
    slurm.log_user("rlsched decides where this job runs: cancel it, and submit it as it should be")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

slurm.log_info("rlsched: job_submit.lua loaded")
return slurm.SUCCESS
