// What an operator has to know: first metrics of the platform, then what workers and consumers report about themselves.
param location string
param tags object
param token string
param actionGroupName string
param email string
param cosmosAccountId string
param serviceBusNamespaceId string
param workspaceId string
param topicMaxSizeInMegabytes int
param backlogMessages int

@description('Name of the worker\'s app. The queries of logs select by the names of the apps.')
param workerName string
param consumerName string

@description('False on AKS, where worker and consumer write their logs to the cluster\'s own workspace. Their metrics are sent here in any case.')
param watchApps bool

var metricAlerts = [
  {
    name: 'dead-letters'
    description: 'A subscriber gave up on messages: check the dead-letter queue of the subscription.'
    target: serviceBusNamespaceId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'DeadletteredMessages'
    aggregation: 'Average'
    threshold: 0
    dimension: 'EntityName'
    values: [
      '*'
    ]
  }
  {
    name: 'topic-filling'
    description: 'The topic is four fifths full; full, it takes no message any more. Look for a subscription without a reader, or one that is behind.'
    target: serviceBusNamespaceId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'Size'
    aggregation: 'Average'
    threshold: topicMaxSizeInMegabytes * 1024 * 1024 * 80 / 100
    dimension: 'EntityName'
    values: [
      '*'
    ]
  }
  {
    name: 'messages-waiting'
    // Raise the threshold if the load grows, because consumers need a while for the messages that an outage has left.
    description: 'Messages pile up in the topic: a reader is away, too slow, or not there at all.'
    target: serviceBusNamespaceId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'ActiveMessages'
    aggregation: 'Average'
    threshold: backlogMessages
    dimension: 'EntityName'
    values: [
      '*'
    ]
  }
  {
    name: 'bus-throttled'
    description: 'Service Bus slows senders down: events arrive late. Consider Premium.'
    target: serviceBusNamespaceId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'ThrottledRequests'
    aggregation: 'Total'
    threshold: 10
    dimension: 'EntityName'
    values: [
      '*'
    ]
  }
  {
    name: 'bus-failing'
    description: 'Service Bus answers with errors of its own; workers retry and keep their position.'
    target: serviceBusNamespaceId
    namespace: 'Microsoft.ServiceBus/namespaces'
    metric: 'ServerErrors'
    aggregation: 'Total'
    threshold: 10
    dimension: 'EntityName'
    values: [
      '*'
    ]
  }
  {
    name: 'cosmos-throttled'
    // A few refused requests are normal, and each costs one retry. The threshold is one such request each second; raise it if the load grows.
    description: 'Cosmos DB goes on refusing requests (429): raise the throughput, or find the hot partition.'
    target: cosmosAccountId
    namespace: 'Microsoft.DocumentDB/databaseAccounts'
    metric: 'TotalRequests'
    aggregation: 'Count'
    threshold: 900
    dimension: 'StatusCode'
    values: [
      '429'
    ]
  }
  {
    name: 'cosmos-busy'
    // The alert uses the average. The maximum would be that of a single second in a quarter of an hour, in which full use is normal.
    description: 'A container uses nearly all of its throughput, not just for a moment.'
    target: cosmosAccountId
    namespace: 'Microsoft.DocumentDB/databaseAccounts'
    metric: 'NormalizedRUConsumption'
    aggregation: 'Average'
    threshold: 90
    dimension: 'CollectionName'
    values: [
      '*'
    ]
  }
]

// `reach`: how far back a query reads. Something that is logged only once is read by two evaluations, because it may arrive minutes late.
// `eachOf`: a column for whose values separate alerts are raised. A single alert would stay silent until it has ended, so a second
// alarm in this time would raise no alert.
var logAlerts = [
  {
    name: 'alarms'
    description: 'A worker or a consumer raised an alarm, and an operator has to act: its log has the record of this name.'
    query: loadTextContent('../queries/alarms.kql')
    measured: true
    severity: 1
    reach: 'PT10M'
    eachOf: 'alarm'
  }
  {
    name: 'events-late'
    description: 'An event waits for more than five minutes to be sent.'
    query: loadTextContent('../queries/events-late.kql')
    measured: true
    severity: 1
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'parked-for-long'
    description: 'A partition key has been parked for a day: `cosmos-outbox parked list` shows them, with --consumer those of a consumer.'
    query: loadTextContent('../queries/parked-for-long.kql')
    measured: true
    severity: 2
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'watch-failing'
    description: 'A worker or a consumer cannot measure what waits or is parked, so alerts on that may have ended. Its log has WatchFailed.'
    query: loadTextContent('../queries/watch-failing.kql')
    measured: true
    severity: 2
    reach: 'PT15M'
    eachOf: ''
  }
  {
    name: 'ttl-headroom'
    description: 'In less than two days Cosmos DB deletes an event that is not sent.'
    query: loadTextContent('../queries/ttl-headroom.kql')
    measured: true
    severity: 0
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'worker-silent'
    description: 'No worker reports anything any more.'
    query: loadTextContent('../queries/worker-silent.kql')
    measured: true
    severity: 1
    reach: 'P2D'
    eachOf: ''
  }
  {
    name: 'worker-unready'
    description: 'A worker is not ready: its leases do not move, or it cannot reach Cosmos DB. /readyz says why.'
    query: loadTextContent('../queries/worker-unready.kql')
    measured: true
    severity: 1
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'worker-failing'
    description: 'The platform cannot keep a worker or a consumer alive.'
    query: loadTextContent('../queries/worker-failing.kql')
    measured: false
    severity: 2
    reach: 'PT15M'
    eachOf: ''
  }
  {
    name: 'leases-lost'
    description: 'Workers keep losing their leases, and send again what they were sending. Their log has LeaseMoved, with the error.'
    query: loadTextContent('../queries/leases-lost.kql')
    measured: true
    severity: 2
    reach: 'PT10M'
    eachOf: ''
  }
  {
    name: 'messages-late'
    description: 'Messages take effect more than five minutes after the broker took them.'
    query: loadTextContent('../queries/messages-late.kql')
    measured: true
    severity: 1
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'attempts-failing'
    description: 'The handlers of a consumer keep failing. Its log has AttemptFailed, with the error.'
    query: loadTextContent('../queries/attempts-failing.kql')
    measured: true
    severity: 2
    reach: 'PT15M'
    eachOf: ''
  }
  {
    name: 'sessions-lost'
    description: 'Consumers keep losing their sessions, and do again what they were doing. Their log has SessionClosed.'
    query: loadTextContent('../queries/sessions-lost.kql')
    measured: true
    severity: 2
    reach: 'PT10M'
    eachOf: ''
  }
  {
    name: 'keys-stalled'
    description: 'A key of a consumer makes no progress, through no fault of its messages. The /readyz of the consumer names key and error.'
    query: loadTextContent('../queries/keys-stalled.kql')
    measured: true
    severity: 1
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'message-waits'
    description: 'A message has waited for an hour for a store or for a service that its handler calls. The status page of the consumer names it.'
    query: loadTextContent('../queries/message-waits.kql')
    measured: true
    severity: 2
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'consumer-unready'
    description: 'A consumer is not ready: it is cut off, stuck, or halted because its handlers fail on every key. /readyz says why.'
    query: loadTextContent('../queries/consumer-unready.kql')
    measured: true
    severity: 1
    reach: 'PT5M'
    eachOf: ''
  }
  {
    name: 'consumer-silent'
    description: 'No consumer reports anything any more.'
    query: loadTextContent('../queries/consumer-silent.kql')
    measured: true
    severity: 1
    reach: 'P2D'
    eachOf: ''
  }
]

resource people 'Microsoft.Insights/actionGroups@2023-01-01' = if (!empty(email)) {
  name: actionGroupName
  location: 'global'
  tags: tags
  properties: {
    groupShortName: 'outbox'
    enabled: true
    emailReceivers: [
      {
        name: 'operators'
        emailAddress: email
        useCommonAlertSchema: true
      }
    ]
  }
}

resource onMetrics 'Microsoft.Insights/metricAlerts@2018-03-01' = [for alert in metricAlerts: {
  name: 'alert-${alert.name}-${token}'
  location: 'global'
  tags: tags
  properties: {
    description: alert.description
    severity: 2
    enabled: true
    autoMitigate: true
    scopes: [
      alert.target
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.MultipleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: alert.name
          metricNamespace: alert.namespace
          metricName: alert.metric
          operator: 'GreaterThan'
          threshold: alert.threshold
          timeAggregation: alert.aggregation
          dimensions: [
            {
              name: alert.dimension
              operator: 'Include'
              values: alert.values
            }
          ]
        }
      ]
    }
    actions: empty(email) ? [] : [
      {
        actionGroupId: people.id
      }
    ]
  }
}]

resource onLogs 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for alert in logAlerts: if (watchApps || alert.measured) {
  name: 'alert-${alert.name}-${token}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: alert.name
    description: alert.description
    severity: alert.severity
    enabled: true
    autoMitigate: true
    scopes: [
      workspaceId
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    overrideQueryTimeRange: alert.reach
    // The tables exist only after the first line is logged, which is after this deployment, so the query is not validated.
    skipQueryValidation: true
    criteria: {
      allOf: [
        {
          // The parameter `names` may give the apps other names than those in the queries.
          query: replace(replace(alert.query, '\'ca-worker\'', '\'${workerName}\''), '\'ca-consumer\'', '\'${consumerName}\'')
          timeAggregation: 'Count'
          operator: 'GreaterThan'
          threshold: 0
          dimensions: empty(alert.eachOf) ? [] : [
            {
              name: alert.eachOf
              operator: 'Include'
              values: [
                '*'
              ]
            }
          ]
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: {
      actionGroups: empty(email) ? [] : [
        people.id
      ]
    }
  }
}]
